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

#define DEEPEST 32

typedef struct {
    PyObject_HEAD
    PyObject **items;
    Py_ssize_t size;     /* entries of the trace */
    Py_ssize_t messages; /* messages they speak for */
} Trace;

/* One walk: over a stored trace (comparing), or into a growing one (recording). */
typedef struct {
    PyObject **items;
    Py_ssize_t at;
    Py_ssize_t room;
    int recording;
} Walk;

enum { SAME = 0, DIFFERENT = 1, UNTRACEABLE = 2, FAILED = -1 };

static PyObject *extra_name;

static int
meet(Walk *walk, PyObject *object)
{
    if (!walk->recording) {
        return walk->at < walk->room && walk->items[walk->at++] == object ? SAME : DIFFERENT;
    }
    if (walk->at == walk->room) {
        Py_ssize_t room = walk->room ? 2 * walk->room : 64;
        PyObject **items = PyMem_Realloc(walk->items, room * sizeof(PyObject *));
        if (items == NULL) {
            PyErr_NoMemory();
            return FAILED;
        }
        walk->items = items;
        walk->room = room;
    }
    Py_INCREF(object);
    walk->items[walk->at++] = object;
    return SAME;
}

static int walk_dict(Walk *walk, PyObject *dict, int depth);

static int
walk_value(Walk *walk, PyObject *value, int depth)
{
    int outcome = meet(walk, value);
    if (outcome != SAME) {
        return outcome;
    }
    if (value == Py_None || PyUnicode_CheckExact(value) || PyBool_Check(value) || PyLong_CheckExact(value) ||
        PyFloat_CheckExact(value) || PyBytes_CheckExact(value)) {
        return SAME;
    }
    if (depth >= DEEPEST) {
        return UNTRACEABLE;
    }
    if (PyDict_CheckExact(value)) {
        return walk_dict(walk, value, depth + 1);
    }
    if (PyList_CheckExact(value)) {
        /* None cannot be told from the end of a list otherwise: the list itself closes what lies in it. */
        for (Py_ssize_t i = 0; i < PyList_Size(value); i++) {
            outcome = walk_value(walk, PyList_GetItem(value, i), depth + 1);
            if (outcome != SAME) {
                return outcome;
            }
        }
        return meet(walk, value);
    }
    if (PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(value); i++) {
            outcome = walk_value(walk, PyTuple_GetItem(value, i), depth + 1);
            if (outcome != SAME) {
                return outcome;
            }
        }
        return SAME;
    }
    return UNTRACEABLE;
}

static int
walk_dict(Walk *walk, PyObject *dict, int depth)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(dict, &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return UNTRACEABLE;
        }
        int outcome = meet(walk, key);
        if (outcome == SAME) {
            outcome = walk_value(walk, value, depth);
        }
        if (outcome != SAME) {
            return outcome;
        }
    }
    return meet(walk, dict);
}

static int
walk_message(Walk *walk, PyObject *message, PyObject *classes)
{
    PyObject *type = (PyObject *)Py_TYPE(message);
    int known = PySet_Contains(classes, type);
    if (known <= 0) {
        return known < 0 ? FAILED : UNTRACEABLE;
    }
    PyObject *extra = PyObject_GetAttr(message, extra_name);
    if (extra == NULL) {
        PyErr_Clear();
        return UNTRACEABLE;
    }
    int plain = extra == Py_None || (PyDict_CheckExact(extra) && PyDict_Size(extra) == 0);
    Py_DECREF(extra);
    if (!plain) {
        return UNTRACEABLE;
    }
    int outcome = meet(walk, type);
    if (outcome != SAME) {
        return outcome;
    }
    PyObject *fields = PyObject_GenericGetDict(message, NULL);
    if (fields == NULL) {
        PyErr_Clear();
        return UNTRACEABLE;
    }
    outcome = PyDict_CheckExact(fields) ? walk_dict(walk, fields, 0) : UNTRACEABLE;
    Py_DECREF(fields);
    return outcome;
}

static int
walk_messages(Walk *walk, PyObject *messages, PyObject *classes)
{
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        int outcome = walk_message(walk, PyList_GetItem(messages, i), classes);
        if (outcome != SAME) {
            return outcome;
        }
    }
    return SAME;
}

static void
release(PyObject **items, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_DECREF(items[i]);
    }
    PyMem_Free(items);
}

static void
trace_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Trace *trace = (Trace *)self;
    PyObject **items = trace->items;
    Py_ssize_t size = trace->size;
    trace->items = NULL;
    trace->size = 0;
    release(items, size);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int
trace_traverse(PyObject *self, visitproc visit, void *arg)
{
    Trace *trace = (Trace *)self;
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < trace->size; i++) {
        Py_VISIT(trace->items[i]);
    }
    return 0;
}

static int
trace_clear(PyObject *self)
{
    Trace *trace = (Trace *)self;
    PyObject **items = trace->items;
    Py_ssize_t size = trace->size;
    trace->items = NULL;
    trace->size = 0;
    release(items, size);
    return 0;
}

static PyObject *
trace_same(PyObject *self, PyObject *args)
{
    Trace *trace = (Trace *)self;
    PyObject *messages, *classes;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &messages, &PyFrozenSet_Type, &classes)) {
        return NULL;
    }
    if (PyList_Size(messages) != trace->messages) {
        Py_RETURN_FALSE;
    }
    Walk walk = {trace->items, 0, trace->size, 0};
    int outcome = walk_messages(&walk, messages, classes);
    if (outcome == FAILED) {
        return NULL;
    }
    return PyBool_FromLong(outcome == SAME && walk.at == trace->size);
}

static PyMethodDef trace_methods[] = {
    {"same", trace_same, METH_VARARGS,
     "same(messages, classes) -> bool\n\nWhether `messages` are as many, and consist of the very same objects, as then."},
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
    Walk walk = {NULL, 0, 0, 1};
    Py_ssize_t before = 0;
    if (after != Py_None) {
        Trace *old = (Trace *)after;
        before = old->messages;
        walk.room = old->size + 64;
        walk.items = PyMem_Malloc(walk.room * sizeof(PyObject *));
        if (walk.items == NULL) {
            return PyErr_NoMemory();
        }
        for (; walk.at < old->size; walk.at++) {
            Py_INCREF(old->items[walk.at]);
            walk.items[walk.at] = old->items[walk.at];
        }
    }
    int outcome = walk_messages(&walk, messages, classes);
    if (outcome != SAME) {
        release(walk.items, walk.at);
        if (outcome == FAILED) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    Trace *made = PyObject_GC_New(Trace, trace_type);
    if (made == NULL) {
        release(walk.items, walk.at);
        return NULL;
    }
    made->items = walk.items;
    made->size = walk.at;
    made->messages = before + PyList_Size(messages);
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
    PyObject *module = extra_name == NULL ? NULL : PyModule_Create(&definition);
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
