/* Trace: what a run of messages looked like, object by object.
 *
 * A trace lists, in a fixed order, every object that the encoding of the messages depends on: each message's class, the
 * keys and values of its instance dict, and what lies in its dicts, lists and tuples at any depth. It holds a strong
 * reference to each, so no address can be reused. As long as a walk over the same messages meets the very same objects
 * in the same order, nothing that is encoded has changed: what is not a dict, a list or a tuple is an immutable scalar,
 * and anything else makes the run untraceable.
 *
 * The walk runs no Python code: it reads instance dicts and one slot of classes that the caller vouches for, and
 * containers of exactly the built-in types. So it cannot be interrupted by another thread while the interpreter has a
 * global lock.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define DEEPEST 32

/* The address of an object, and in its lowest bits what else is to be looked at: a scalar that is the same object is not
 * touched at all, for most of what comparing takes is waiting for memory. */
typedef uintptr_t Entry;

enum { LEAF = 0, DICT = 1, LIST = 2, TUPLE = 3, KINDS = 3 };

#define OBJECT(entry) ((PyObject *)((entry) & ~(Entry)KINDS))

/* A trace that goes on from another one has that in front. It takes over the entries of those that speak for no more
 * messages than what comes behind them. So where messages come one by one, a chain of n has a link for each bit of n, and no
 * entry is taken over more often. */
typedef struct Trace {
    PyObject_HEAD
    struct Trace *before;
    Entry *entries;
    Py_ssize_t size;     /* entries of its own */
    Py_ssize_t messages; /* messages that it speaks for, with those before */
    PyObject *slot;      /* the descriptor of the slot for their extras */
} Trace;

/* The most links that one trace takes over. */
#define LONGEST 64

enum { SAME = 0, UNTRACEABLE = 1, FAILED = -1 };

static PyObject *extra_name;
static descrgetfunc get_member;

/* Recording. */

typedef struct {
    Entry *entries;
    Py_ssize_t size;
    Py_ssize_t room;
    PyObject *slot;
} Record;

static int
add(Record *record, PyObject *object, int kind)
{
    if (record->size == record->room) {
        Py_ssize_t room = record->room ? 2 * record->room : 64;
        Entry *entries = PyMem_Realloc(record->entries, room * sizeof(Entry));
        if (entries == NULL) {
            PyErr_NoMemory();
            return FAILED;
        }
        record->entries = entries;
        record->room = room;
    }
    Py_INCREF(object);
    record->entries[record->size++] = (Entry)object | kind;
    return SAME;
}

static int record_dict(Record *record, PyObject *dict, int depth);

static int
record_value(Record *record, PyObject *value, int depth)
{
    if (value == Py_None || PyUnicode_CheckExact(value) || PyBool_Check(value) || PyLong_CheckExact(value) ||
        PyFloat_CheckExact(value) || PyBytes_CheckExact(value)) {
        return add(record, value, LEAF);
    }
    if (depth >= DEEPEST) {
        return UNTRACEABLE;
    }
    int outcome;
    if (PyDict_CheckExact(value)) {
        outcome = add(record, value, DICT);
        return outcome == SAME ? record_dict(record, value, depth + 1) : outcome;
    }
    if (PyList_CheckExact(value)) {
        outcome = add(record, value, LIST);
        for (Py_ssize_t i = 0; outcome == SAME && i < PyList_Size(value); i++) {
            outcome = record_value(record, PyList_GetItem(value, i), depth + 1);
        }
        return outcome == SAME ? add(record, value, LEAF) : outcome;
    }
    if (PyTuple_CheckExact(value)) {
        outcome = add(record, value, TUPLE);
        for (Py_ssize_t i = 0; outcome == SAME && i < PyTuple_Size(value); i++) {
            outcome = record_value(record, PyTuple_GetItem(value, i), depth + 1);
        }
        return outcome;
    }
    return UNTRACEABLE;
}

static int
record_dict(Record *record, PyObject *dict, int depth)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(dict, &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return UNTRACEABLE;
        }
        int outcome = add(record, key, LEAF);
        if (outcome == SAME) {
            outcome = record_value(record, value, depth);
        }
        if (outcome != SAME) {
            return outcome;
        }
    }
    /* A dict closes what lies in it: its end could not be told from what follows otherwise. */
    return add(record, dict, LEAF);
}

/* Comparing: objects that are the same are not looked at, but for those with others in them. */

typedef struct {
    const Entry *at;
    const Entry *end;
} Compare;

static int
is_next(Compare *compare, PyObject *object)
{
    return compare->at < compare->end && OBJECT(*compare->at++) == object;
}

/* Whether `container` ends here. Not the same object as something in it: were a list put into itself, that would pass for
 * its end. */
static int
ends(Compare *compare, PyObject *container)
{
    return compare->at < compare->end && *compare->at++ == ((Entry)container | LEAF);
}

static int same_dict(Compare *compare, PyObject *dict);

static int
same_value(Compare *compare, PyObject *value)
{
    if (!is_next(compare, value)) {
        return 0;
    }
    switch (compare->at[-1] & KINDS) {
    case DICT:
        return same_dict(compare, value);
    case LIST:
        for (Py_ssize_t i = 0, size = PyList_Size(value); i < size; i++) {
            if (!same_value(compare, PyList_GetItem(value, i))) {
                return 0;
            }
        }
        return ends(compare, value);
    case TUPLE:
        for (Py_ssize_t i = 0, size = PyTuple_Size(value); i < size; i++) {
            if (!same_value(compare, PyTuple_GetItem(value, i))) {
                return 0;
            }
        }
        return 1;
    default:
        return 1;
    }
}

static int
same_dict(Compare *compare, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(dict, &place, &key, &value)) {
        if (!is_next(compare, key) || !same_value(compare, value)) {
            return 0;
        }
    }
    return ends(compare, dict);
}

/* What a message's encoding depends on but its class: its instance dict, borrowed from the message. NULL without an error
 * where there is more, or none. `slot` is the descriptor of where pydantic keeps extras. */
static PyObject *
fields_of(PyObject *message, PyObject *slot)
{
    PyObject *extra = get_member(slot, message, (PyObject *)Py_TYPE(message)), *fields = NULL;
    if (extra == Py_None || (extra != NULL && PyDict_CheckExact(extra) && PyDict_Size(extra) == 0)) {
        fields = PyObject_GenericGetDict(message, NULL);
    }
    Py_XDECREF(extra);
    if (fields == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(fields);
    return PyDict_CheckExact(fields) ? fields : NULL;
}

/* Whether objects of `type` have their extras in the slot of `record`, which is that of the first one. */
static int
has_slot(Record *record, PyObject *type)
{
    PyObject *slot = PyObject_GetAttr(type, extra_name);
    if (slot == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (record->slot == NULL && Py_TYPE(slot) == &PyMemberDescr_Type) {
        record->slot = slot;
        return 1;
    }
    Py_DECREF(slot);
    return slot == record->slot;
}

static int
record_messages(Record *record, PyObject *messages, PyObject *classes)
{
    int outcome = SAME;
    for (Py_ssize_t i = 0; outcome == SAME && i < PyList_Size(messages); i++) {
        PyObject *message = PyList_GetItem(messages, i), *type = (PyObject *)Py_TYPE(message);
        int known = PySet_Contains(classes, type);
        PyObject *fields = known > 0 && has_slot(record, type) ? fields_of(message, record->slot) : NULL;
        if (fields == NULL) {
            return known < 0 ? FAILED : UNTRACEABLE;
        }
        outcome = add(record, type, LEAF);
        outcome = outcome == SAME ? record_dict(record, fields, 0) : outcome;
    }
    return outcome;
}

static Py_ssize_t
spoken_for(Trace *trace)
{
    return trace == NULL ? 0 : trace->messages;
}

static int
same_messages(Trace *trace, PyObject *messages)
{
    if (trace->before != NULL && !same_messages(trace->before, messages)) {
        return 0;
    }
    Compare compare = {trace->entries, trace->entries + trace->size};
    for (Py_ssize_t i = spoken_for(trace->before); i < trace->messages; i++) {
        PyObject *message = PyList_GetItem(messages, i), *fields;
        if (message == NULL) { /* where a dict had to be made, another thread may have made the list shorter */
            PyErr_Clear();
            return 0;
        }
        /* Its class is one of those of then. */
        if (!is_next(&compare, (PyObject *)Py_TYPE(message)) || (fields = fields_of(message, trace->slot)) == NULL ||
            !same_dict(&compare, fields)) {
            return 0;
        }
    }
    return compare.at == compare.end;
}

static void
release(Entry *entries, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_DECREF(OBJECT(entries[i]));
    }
    PyMem_Free(entries);
}

static void
trace_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Trace *trace = (Trace *)self;
    Entry *entries = trace->entries;
    Py_ssize_t size = trace->size;
    trace->entries = NULL;
    trace->size = 0;
    release(entries, size);
    Py_CLEAR(trace->before);
    Py_CLEAR(trace->slot);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int
trace_traverse(PyObject *self, visitproc visit, void *arg)
{
    Trace *trace = (Trace *)self;
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < trace->size; i++) {
        Py_VISIT(OBJECT(trace->entries[i]));
    }
    Py_VISIT(trace->before);
    Py_VISIT(trace->slot);
    return 0;
}

static int
trace_clear(PyObject *self)
{
    Trace *trace = (Trace *)self;
    Entry *entries = trace->entries;
    Py_ssize_t size = trace->size;
    trace->entries = NULL;
    trace->size = 0;
    release(entries, size);
    Py_CLEAR(trace->before);
    Py_CLEAR(trace->slot);
    return 0;
}

static PyObject *
trace_same(PyObject *self, PyObject *messages)
{
    Trace *trace = (Trace *)self;
    if (!PyList_CheckExact(messages)) {
        PyErr_SetString(PyExc_TypeError, "messages must be a list");
        return NULL;
    }
    return PyBool_FromLong(PyList_Size(messages) == trace->messages && same_messages(trace, messages));
}

static PyMethodDef trace_methods[] = {
    {"same", trace_same, METH_O,
     "same(messages) -> bool\n\nWhether `messages` are as many, and consist of the very same objects, as then."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot trace_slots[] = {
    {Py_tp_dealloc, trace_dealloc},
    {Py_tp_traverse, trace_traverse},
    {Py_tp_clear, trace_clear},
    {Py_tp_methods, trace_methods},
    {Py_tp_doc, "What a run of messages looked like, object by object. Made by `trace`."},
    {0, NULL},
};

static PyType_Spec trace_spec = {
    .name = "milepost_speedups._trace.Trace",
    .basicsize = sizeof(Trace),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = trace_slots,
};

static PyTypeObject *trace_type;

/* Copy the entries of the last links of the chain `before` that speak for no more messages than what comes behind them, of
 * which the last `count` are to be recorded. What is left of the chain stays in front. */
static int
take_over(Record *record, Trace **before, Py_ssize_t count)
{
    Trace *taken[LONGEST];
    int links = 0;
    if (*before != NULL) {
        Py_XINCREF((*before)->slot);
        record->slot = (*before)->slot;
    }
    while (*before != NULL && links < LONGEST && (*before)->messages - spoken_for((*before)->before) <= count) {
        taken[links++] = *before;
        count += (*before)->messages - spoken_for((*before)->before);
        record->room += (*before)->size;
        *before = (*before)->before;
    }
    record->room += 64;
    record->entries = PyMem_Malloc(record->room * sizeof(Entry));
    if (record->entries == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    while (links-- > 0) {
        for (Py_ssize_t i = 0; i < taken[links]->size; i++) {
            Entry entry = taken[links]->entries[i];
            Py_INCREF(OBJECT(entry));
            record->entries[record->size++] = entry;
        }
    }
    return SAME;
}

static PyObject *
trace(PyObject *module, PyObject *args)
{
    PyObject *messages, *classes, *after = Py_None;
    if (!PyArg_ParseTuple(args, "O!O!|O", &PyList_Type, &messages, &PyFrozenSet_Type, &classes, &after)) {
        return NULL;
    }
    if (after != Py_None && Py_TYPE(after) != trace_type) {
        PyErr_SetString(PyExc_TypeError, "after must be a Trace or None");
        return NULL;
    }
    Record record = {NULL, 0, 0, NULL};
    Trace *before = after == Py_None ? NULL : (Trace *)after;
    int outcome = take_over(&record, &before, PyList_Size(messages));
    if (outcome == SAME) {
        outcome = record_messages(&record, messages, classes);
    }
    Trace *made = outcome == SAME ? PyObject_GC_New(Trace, trace_type) : NULL;
    if (made == NULL) {
        release(record.entries, record.size);
        Py_XDECREF(record.slot);
        if (outcome == UNTRACEABLE) {
            Py_RETURN_NONE;
        }
        return NULL;
    }
    Py_XINCREF((PyObject *)before);
    made->before = before;
    Entry *fitting = PyMem_Realloc(record.entries, (record.size ? record.size : 1) * sizeof(Entry));
    made->entries = fitting == NULL ? record.entries : fitting;
    made->size = record.size;
    made->messages = (after == Py_None ? 0 : ((Trace *)after)->messages) + PyList_Size(messages);
    made->slot = record.slot;
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

static PyMethodDef functions[] = {
    {"trace", trace, METH_VARARGS,
     "trace(messages, classes, after=None) -> Trace | None\n\n"
     "The trace of a list of messages, or of those that `after` speaks for and `messages` behind them. None when there\n"
     "is something in them that identity cannot vouch for, or a class that is not one of the frozenset `classes`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "milepost_speedups._trace", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__trace(void)
{
    extra_name = PyUnicode_InternFromString("__pydantic_extra__");
    get_member = (descrgetfunc)PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_get);
    PyObject *module = extra_name == NULL || get_member == NULL ? NULL : PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    trace_type = (PyTypeObject *)PyType_FromSpec(&trace_spec);
    if (trace_type == NULL || PyModule_AddObjectRef(module, "Trace", (PyObject *)trace_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
