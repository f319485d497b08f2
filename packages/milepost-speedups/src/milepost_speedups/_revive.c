/* Messages: LangChain messages of the usual shape from msgpack extensions, without running Python for each of them.
 *
 * `milepost.codec.messages` says what the usual shape is and passes it in as data: a class, its fields in order, and one
 * rule for each field (the letters below). `milepost.codec.revive` owns everything else: an extension of another kind,
 * a message of another shape and every error go back to its methods, with what has been decoded so far, so nothing is
 * decoded twice and there is one place that decides.
 */

#include "_unpack.h"

enum { PYDANTIC_V2 = 5, PARTS = 4, SHARED = 64 };

/* What the value of a field must be, so that the class's validation would leave it as it is. */
enum {
    ANYTHING = 'a',
    CALLS = 'l',        /* a list of tool calls; if it is empty, the validator would look into the dict KWARGS */
    CONTENT = 'c',      /* a str, or a list of str and dict */
    DICT = 'd',
    EMPTY = 'e',        /* an empty list */
    KIND = 't',         /* what the class's field `type` says */
    KWARGS = 'k',       /* a dict */
    MAYBE_TEXT = 'o',   /* a str or None */
    STATUS = 'z',       /* "success" or "error" */
    TEXT = 's',
    USAGE = 'u',        /* None, or three counts of tokens */
};

static const char letters[] = "aclektdoszu";

typedef struct {
    PyTypeObject *cls;
    PyObject *module;
    PyObject *names; /* a tuple of str */
    PyObject *given; /* the same as a set, to be copied */
    PyObject *kind;
    PyObject *rules; /* bytes: a letter for each name */
    PyObject *label; /* the name of the class */
    PyObject *blank; /* a dict of the names, to be copied */
} Shape;

typedef struct {
    PyObject_HEAD
    PyObject *table; /* of str -> index into shapes */
    Shape *shapes;
    Py_ssize_t size;
    PyObject *unpackb;
    PyObject *option;
    PyObject *given; /* descriptors of what pydantic keeps beside the fields */
    PyObject *extra;
    PyObject *private;
} Messages;

typedef struct {
    PyObject_HEAD
    Messages *messages;
    PyObject *revival;
} Hook;

static PyTypeObject *messages_type, *hook_type;
static PyObject *name_unpackb_hook, *name_unpackb_option, *name_degraded, *name_other, *name_finish, *name_fail;
static PyObject *call_names[4], *count_names[3];
static PyObject *no_arguments;
static newfunc plain_new; /* object.__new__: interpreters differ in what a new instance needs */
static PyObject *text_tool_call, *text_tool_calls, *text_success, *text_error, *text_method;

/* Both are str. */
static int
same_text(PyObject *one, PyObject *other)
{
    return one == other || PyUnicode_Compare(one, other) == 0;
}

static int
is_text(PyObject *value, PyObject *text)
{
    return PyUnicode_CheckExact(value) && same_text(value, text);
}

/* Whether `dict` has exactly these keys in this order; puts its values, borrowed, into `values`. */
static int
take_fields(PyObject *dict, PyObject *const *names, PyObject *tuple, Py_ssize_t count, PyObject **values)
{
    PyObject *key, *value;
    Py_ssize_t place = 0, at = 0;
    if (PyDict_Size(dict) != count) {
        return 0;
    }
    while (PyDict_Next(dict, &place, &key, &value)) {
        PyObject *name = tuple ? PyTuple_GetItem(tuple, at) : names[at];
        if (!is_text(key, name)) {
            return 0;
        }
        values[at++] = value;
    }
    return at == count;
}

static int
plain_content(PyObject *content)
{
    if (PyUnicode_CheckExact(content)) {
        return 1;
    }
    if (!PyList_CheckExact(content)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(content); i++) {
        PyObject *part = PyList_GetItem(content, i);
        if (!PyUnicode_CheckExact(part) && !PyDict_CheckExact(part)) {
            return 0;
        }
    }
    return 1;
}

static int
plain_call(PyObject *call)
{
    PyObject *values[4];
    if (!PyDict_CheckExact(call) || !take_fields(call, call_names, NULL, 4, values)) {
        return 0;
    }
    if (!PyUnicode_CheckExact(values[0]) || !PyDict_CheckExact(values[1]) ||
        (values[2] != Py_None && !PyUnicode_CheckExact(values[2])) || !is_text(values[3], text_tool_call)) {
        return 0;
    }
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(values[1], &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return 0;
        }
    }
    return 1;
}

static int
plain_calls(PyObject *calls)
{
    if (!PyList_CheckExact(calls)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(calls); i++) {
        if (!plain_call(PyList_GetItem(calls, i))) {
            return 0;
        }
    }
    return 1;
}

static int
plain_usage(PyObject *usage)
{
    PyObject *values[3];
    if (usage == Py_None) {
        return 1;
    }
    return PyDict_CheckExact(usage) && take_fields(usage, count_names, NULL, 3, values) &&
           PyLong_CheckExact(values[0]) && PyLong_CheckExact(values[1]) && PyLong_CheckExact(values[2]);
}

static int
plain_value(char rule, PyObject *value, PyObject *kind)
{
    switch (rule) {
    case ANYTHING:
        return 1;
    case CALLS:
        return plain_calls(value);
    case CONTENT:
        return plain_content(value);
    case DICT:
    case KWARGS:
        return PyDict_CheckExact(value);
    case EMPTY:
        return PyList_CheckExact(value) && PyList_Size(value) == 0;
    case KIND:
        return is_text(value, kind);
    case MAYBE_TEXT:
        return value == Py_None || PyUnicode_CheckExact(value);
    case STATUS:
        return is_text(value, text_success) || is_text(value, text_error);
    case TEXT:
        return PyUnicode_CheckExact(value);
    case USAGE:
        return plain_usage(value);
    default:
        return 0;
    }
}

#define MOST_FIELDS 16

/* Whether a message with these values is of the usual shape: 1 or 0; -1: an error is set. */
static int
usual_values(Shape *shape, PyObject **values)
{
    Py_ssize_t count = PyTuple_Size(shape->names);
    const char *rules = PyBytes_AsString(shape->rules);
    PyObject *kwargs = NULL;
    int calls_expected = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!plain_value(rules[i], values[i], shape->kind)) {
            return 0;
        }
        if (rules[i] == KWARGS) {
            kwargs = values[i];
        } else if (rules[i] == CALLS) {
            calls_expected = PyList_Size(values[i]) == 0;
        }
    }
    if (calls_expected && kwargs != NULL) {
        PyObject *calls = PyDict_GetItemWithError(kwargs, text_tool_calls);
        if (calls == NULL) {
            return PyErr_Occurred() ? -1 : 1;
        }
        int some = PyObject_IsTrue(calls);
        return some < 0 ? -1 : !some;
    }
    return 1;
}

/* The same for a message with these fields. */
static int
usual(Shape *shape, PyObject *fields)
{
    PyObject *values[MOST_FIELDS];
    Py_ssize_t count = PyTuple_Size(shape->names);
    if (!PyDict_CheckExact(fields) || !take_fields(fields, NULL, shape->names, count, values)) {
        return 0;
    }
    return usual_values(shape, values);
}

static int
put_beside(PyObject *descriptor, PyObject *message, PyObject *value)
{
    descrsetfunc put = (descrsetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_set);
    int failed = value == NULL ? -1 : put(descriptor, message, value);
    Py_XDECREF(value);
    return failed;
}

static PyObject *
build(Messages *messages, Shape *shape, PyObject *fields)
{
    PyObject *message = plain_new(shape->cls, no_arguments, NULL);
    if (message == NULL) {
        return NULL;
    }
    Py_INCREF(Py_None);
    if (PyObject_GenericSetDict(message, fields, NULL) < 0 ||
        put_beside(messages->private, message, Py_None) < 0 ||
        put_beside(messages->given, message, PySet_New(shape->given)) < 0 ||
        put_beside(messages->extra, message, PyDict_New()) < 0) {
        Py_DECREF(message);
        return NULL;
    }
    return message;
}

/* The message that the four parts of an extension describe. NULL without an error: somebody else has to see to it. */
static PyObject *
message_of(Messages *messages, PyObject *parts)
{
    if (!PyList_CheckExact(parts) || PyList_Size(parts) != PARTS) {
        return NULL;
    }
    PyObject *module = PyList_GetItem(parts, 0), *name = PyList_GetItem(parts, 1);
    if (!PyUnicode_CheckExact(module) || !PyUnicode_CheckExact(name)) {
        return NULL;
    }
    PyObject *number = PyDict_GetItemWithError(messages->table, name);
    if (number == NULL) {
        return NULL;
    }
    Shape *shape = &messages->shapes[PyLong_AsSsize_t(number)];
    PyObject *fields = PyList_GetItem(parts, 2);
    if (!same_text(module, shape->module) || usual(shape, fields) <= 0) {
        return NULL;
    }
    return build(messages, shape, fields);
}

/* Whether a text comes next that is this str. */
static int
read_this(Reader *reader, PyObject *text)
{
    const char *read;
    size_t size;
    Py_ssize_t length;
    const char *wanted = PyUnicode_AsUTF8AndSize(text, &length);
    return wanted != NULL && read_span(reader, &read, &size) && size == (size_t)length && memcmp(read, wanted, size) == 0;
}

/* Reads a value: a long text from `texts`, if that is a dict which has the one of `key`, or else into it. */
static PyObject *
read_shared(Reader *reader, PyObject *texts, PyObject *item)
{
    Reader ahead = *reader;
    const char *text;
    size_t size;
    if (texts == NULL || !read_span(&ahead, &text, &size) || size < SHARED) {
        return read_value(reader, 0);
    }
    PyObject *key = PyLong_FromVoidPtr(item);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(texts, key);
    Py_XINCREF(found);
    if (found == NULL && !PyErr_Occurred()) {
        found = text_of(text, size);
        if (found != NULL && PyDict_SetItem(texts, key, found) < 0) {
            Py_CLEAR(found);
        }
    }
    Py_XDECREF(key);
    *reader = ahead;
    return found;
}

/* Reads what `read_message` has found to be the fields of a message of `shape`, and the end. */
static PyObject *
read_fields(Messages *messages, Shape *shape, Reader *reader, PyObject *item, PyObject *texts)
{
    PyObject *values[MOST_FIELDS], *fields = NULL, *message = NULL;
    Py_ssize_t count = PyTuple_Size(shape->names), known = 0;
    const char *rules = PyBytes_AsString(shape->rules);
    while (known < count && read_this(reader, PyTuple_GetItem(shape->names, known))) {
        values[known] = read_shared(reader, rules[known] == CONTENT ? texts : NULL, item);
        if (values[known] == NULL) {
            break;
        }
        known++;
    }
    if (known == count && read_this(reader, text_method) && reader->at == reader->end && usual_values(shape, values) > 0) {
        fields = PyDict_Copy(shape->blank);
    }
    for (Py_ssize_t i = 0; i < known; i++) {
        if (fields != NULL && PyDict_SetItem(fields, PyTuple_GetItem(shape->names, i), values[i]) < 0) {
            Py_CLEAR(fields);
        }
        Py_DECREF(values[i]);
    }
    if (fields != NULL) {
        message = build(messages, shape, fields);
        Py_DECREF(fields);
    }
    return message;
}

/* The message that an item is, without ormsgpack. NULL without an error: it is to see to it. */
static PyObject *
read_message(Messages *messages, PyObject *item, PyObject *texts)
{
    char *data;
    Py_ssize_t size;
    uint64_t length, kind;
    if (!PyBytes_CheckExact(item)) {
        return NULL;
    }
    if (PyBytes_AsStringAndSize(item, &data, &size) < 0 || size < 1) {
        return NULL;
    }
    Reader reader = {(unsigned char *)data, (unsigned char *)data + size};
    unsigned head = *reader.at++;
    if (head < 0xc7 || head > 0xc9 || !read_length(&reader, head, 0xc7, &length) || !read_number(&reader, 1, &kind) ||
        kind != PYDANTIC_V2 || length != left(&reader) || length < 1 || *reader.at++ != (0x90 | PARTS)) {
        return NULL;
    }
    Reader names = reader;
    for (Py_ssize_t i = 0; i < messages->size; i++) {
        Shape *shape = &messages->shapes[i];
        reader = names;
        if (read_this(&reader, shape->module) && read_this(&reader, shape->label) && left(&reader) > 0 &&
            *reader.at++ == (0x80 | (unsigned)PyTuple_Size(shape->names))) {
            return read_fields(messages, shape, &reader, item, texts);
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    return NULL;
}

static PyObject *
messages_read(PyObject *self, PyObject *args)
{
    PyObject *items, *texts;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &items, &texts)) {
        return NULL;
    }
    if (texts != Py_None && !PyDict_CheckExact(texts)) {
        PyErr_SetString(PyExc_TypeError, "texts must be a dict or None");
        return NULL;
    }
    texts = texts == Py_None ? NULL : texts;
    PyObject *found = PyList_New(0), *others = PyList_New(0);
    if (found == NULL || others == NULL) {
        goto failed;
    }
    /* To make objects may have the collector run, and that anything: what is read is held. */
    for (Py_ssize_t i = 0; i < PyList_Size(items); i++) {
        PyObject *item = PyList_GetItem(items, i);
        Py_INCREF(item);
        PyObject *message = read_message((Messages *)self, item, texts);
        Py_DECREF(item);
        if (message == NULL && (PyErr_Occurred() || i == 0)) {
            if (PyErr_Occurred()) {
                goto failed;
            }
            Py_DECREF(found);
            Py_DECREF(others);
            Py_RETURN_NONE;
        }
        PyObject *number = message == NULL ? PyLong_FromSsize_t(i) : NULL;
        int wrong = (message == NULL && (number == NULL || PyList_Append(others, number) < 0)) ||
                    PyList_Append(found, message == NULL ? Py_None : message) < 0;
        Py_XDECREF(number);
        Py_XDECREF(message);
        if (wrong) {
            goto failed;
        }
    }
    PyObject *answer = PyTuple_Pack(2, found, others);
    Py_DECREF(found);
    Py_DECREF(others);
    return answer;
failed:
    Py_XDECREF(found);
    Py_XDECREF(others);
    return NULL;
}

static PyObject *
unpack(Messages *messages, PyObject *hook, PyObject *data)
{
    PyObject *unpacked = NULL, *args = PyTuple_Pack(1, data), *kwargs = PyDict_New();
    if (args != NULL && kwargs != NULL && PyDict_SetItem(kwargs, name_unpackb_hook, hook) == 0 &&
        PyDict_SetItem(kwargs, name_unpackb_option, messages->option) == 0) {
        unpacked = PyObject_Call(messages->unpackb, args, kwargs);
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return unpacked;
}

/* Have the revival take note of the exception that is set. It stays set. */
static void
tell(PyObject *revival)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *done = PyObject_CallMethodObjArgs(revival, name_fail, value, NULL);
    if (done == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
}

static PyObject *
revive(Hook *hook, PyObject *code, PyObject *data)
{
    PyObject *revival = hook->revival;
    PyObject *degraded = PyObject_GetAttr(revival, name_degraded);
    if (degraded == NULL) {
        return NULL;
    }
    PyObject *found = NULL, *parts = unpack(hook->messages, (PyObject *)hook, data);
    if (parts != NULL) {
        found = message_of(hook->messages, parts);
    }
    if (found == NULL && PyErr_Occurred()) {
        tell(revival);
    } else if (found == NULL) {
        found = PyObject_CallMethodObjArgs(revival, name_finish, code, data, parts, degraded, NULL);
    }
    Py_XDECREF(parts);
    Py_DECREF(degraded);
    return found;
}

static PyObject *
hook_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *code, *data, *result;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "the hook takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO", &code, &data)) {
        return NULL;
    }
    Hook *hook = (Hook *)self;
    if (!PyLong_CheckExact(code) || PyLong_AsLong(code) != PYDANTIC_V2) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        return PyObject_CallMethodObjArgs(hook->revival, name_other, code, data, NULL);
    }
    /* Each nesting costs C stack, so it counts like a call of Python. */
    if (Py_EnterRecursiveCall(" while a stored value is rebuilt")) {
        tell(hook->revival);
        return NULL;
    }
    result = revive(hook, code, data);
    Py_LeaveRecursiveCall();
    return result;
}

static int
hook_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Hook *)self)->messages);
    Py_VISIT(((Hook *)self)->revival);
    return 0;
}

static int
hook_clear(PyObject *self)
{
    Py_CLEAR(((Hook *)self)->messages);
    Py_CLEAR(((Hook *)self)->revival);
    return 0;
}

static void
hook_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    hook_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot hook_slots[] = {
    {Py_tp_call, hook_call},
    {Py_tp_dealloc, hook_dealloc},
    {Py_tp_traverse, hook_traverse},
    {Py_tp_clear, hook_clear},
    {Py_tp_doc, "An ext_hook for ormsgpack. Made by `Messages.hook`."},
    {0, NULL},
};

static PyType_Spec hook_spec = {
    .name = "milepost_speedups._revive.Hook",
    .basicsize = sizeof(Hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = hook_slots,
};

static PyObject *
messages_hook(PyObject *self, PyObject *revival)
{
    Hook *hook = PyObject_GC_New(Hook, hook_type);
    if (hook == NULL) {
        return NULL;
    }
    Py_INCREF(self);
    Py_INCREF(revival);
    hook->messages = (Messages *)self;
    hook->revival = revival;
    PyObject_GC_Track((PyObject *)hook);
    return (PyObject *)hook;
}

static int
messages_traverse(PyObject *self, visitproc visit, void *arg)
{
    Messages *messages = (Messages *)self;
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < messages->size; i++) {
        Py_VISIT(messages->shapes[i].cls);
    }
    Py_VISIT(messages->unpackb);
    return 0;
}

static int
messages_clear(PyObject *self)
{
    Messages *messages = (Messages *)self;
    Py_ssize_t size = messages->size;
    messages->size = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        Shape *shape = &messages->shapes[i];
        Py_CLEAR(shape->cls);
        Py_CLEAR(shape->module);
        Py_CLEAR(shape->names);
        Py_CLEAR(shape->given);
        Py_CLEAR(shape->kind);
        Py_CLEAR(shape->rules);
        Py_CLEAR(shape->label);
        Py_CLEAR(shape->blank);
    }
    Py_CLEAR(messages->table);
    Py_CLEAR(messages->unpackb);
    Py_CLEAR(messages->option);
    Py_CLEAR(messages->given);
    Py_CLEAR(messages->extra);
    Py_CLEAR(messages->private);
    return 0;
}

static void
messages_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    messages_clear(self);
    PyMem_Free(((Messages *)self)->shapes);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int
well_formed(PyObject *cls, PyObject *names, PyObject *rules)
{
    Py_ssize_t count = PyTuple_Size(names);
    if (!PyType_IsSubtype((PyTypeObject *)cls, &PyBaseObject_Type) || count > MOST_FIELDS ||
        PyBytes_Size(rules) != count) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char letter = PyBytes_AsString(rules)[i];
        int known = 0;
        for (const char *each = letters; *each; each++) {
            known |= *each == letter;
        }
        if (!known || !PyUnicode_CheckExact(PyTuple_GetItem(names, i))) {
            return 0;
        }
    }
    return 1;
}

static int
add_shape(Messages *messages, PyObject *row)
{
    PyObject *cls, *module, *name, *names, *kind, *rules;
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a shape is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(row, "O!UUO!US", &PyType_Type, &cls, &module, &name, &PyTuple_Type, &names, &kind, &rules)) {
        return -1;
    }
    if (!well_formed(cls, names, rules)) {
        PyErr_SetString(PyExc_ValueError, "a shape has at most 16 fields, and a known letter for each");
        return -1;
    }
    PyObject *given = PySet_New(names), *blank = PyDict_New(), *number = PyLong_FromSsize_t(messages->size);
    int wrong = given == NULL || blank == NULL || number == NULL || PyDict_SetItem(messages->table, name, number) < 0;
    for (Py_ssize_t i = 0; !wrong && i < PyTuple_Size(names); i++) {
        wrong = PyDict_SetItem(blank, PyTuple_GetItem(names, i), Py_None) < 0;
    }
    if (wrong) {
        Py_XDECREF(given);
        Py_XDECREF(blank);
        Py_XDECREF(number);
        return -1;
    }
    Py_DECREF(number);
    Py_INCREF(cls);
    Py_INCREF(module);
    Py_INCREF(names);
    Py_INCREF(kind);
    Py_INCREF(rules);
    Py_INCREF(name);
    messages->shapes[messages->size++] = (Shape){(PyTypeObject *)cls, module, names, given, kind, rules, name, blank};
    return 0;
}

static int
settable(PyObject *descriptor)
{
    return PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_set) != NULL;
}

static PyObject *
messages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *shapes, *unpackb, *option, *given, *extra, *private;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Messages takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!OO!OOO", &PyList_Type, &shapes, &unpackb, &PyLong_Type, &option, &given, &extra,
                          &private)) {
        return NULL;
    }
    if (!PyCallable_Check(unpackb) || !settable(given) || !settable(extra) || !settable(private)) {
        PyErr_SetString(PyExc_TypeError, "unpackb must be callable, and the last three must be data descriptors");
        return NULL;
    }
    Messages *made = (Messages *)PyType_GenericAlloc(type, 0);
    if (made == NULL) {
        return NULL;
    }
    Py_ssize_t size = PyList_Size(shapes);
    made->table = PyDict_New();
    made->shapes = PyMem_Calloc(size ? size : 1, sizeof(Shape));
    if (made->table == NULL || made->shapes == NULL) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    Py_INCREF(unpackb);
    Py_INCREF(option);
    Py_INCREF(given);
    Py_INCREF(extra);
    Py_INCREF(private);
    made->unpackb = unpackb;
    made->option = option;
    made->given = given;
    made->extra = extra;
    made->private = private;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (add_shape(made, PyList_GetItem(shapes, i)) < 0) {
            Py_DECREF(made);
            return NULL;
        }
    }
    return (PyObject *)made;
}

static PyMethodDef messages_methods[] = {
    {"hook", messages_hook, METH_O,
     "hook(revival) -> Hook\n\nAn ext_hook that builds messages, and asks `revival` about everything else."},
    {"read", messages_read, METH_VARARGS,
     "read(items, texts) -> (messages, others), or None\n\n"
     "The messages that items of msgpack are, and the places of those that are to be decoded in another way, where None\n"
     "stands in the list; nothing at all if the first one is such. Of the same item, read again with the same dict of\n"
     "`texts`, a long content is the same str; whoever keeps the dict keeps the items."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot messages_slots[] = {
    {Py_tp_new, messages_new},
    {Py_tp_dealloc, messages_dealloc},
    {Py_tp_traverse, messages_traverse},
    {Py_tp_clear, messages_clear},
    {Py_tp_methods, messages_methods},
    {Py_tp_doc,
     "Messages(shapes, unpackb, option, given, extra, private)\n\n"
     "The shapes, each (class, module, name, field names, kind, rules); ormsgpack's unpackb and its option; and the\n"
     "descriptors of what pydantic keeps in a model beside its dict."},
    {0, NULL},
};

static PyType_Spec messages_spec = {
    .name = "milepost_speedups._revive.Messages",
    .basicsize = sizeof(Messages),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = messages_slots,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "milepost_speedups._revive", NULL, -1, NULL, NULL, NULL, NULL, NULL,
};

static int
intern(void)
{
    struct {
        PyObject **place;
        const char *text;
    } texts[] = {
        {&name_unpackb_hook, "ext_hook"}, {&name_unpackb_option, "option"}, {&name_degraded, "degraded"},
        {&name_other, "hook"},            {&name_finish, "finish"},         {&name_fail, "fail"},
        {&call_names[0], "name"},         {&call_names[1], "args"},         {&call_names[2], "id"},
        {&call_names[3], "type"},         {&count_names[0], "input_tokens"}, {&count_names[1], "output_tokens"},
        {&count_names[2], "total_tokens"}, {&text_tool_call, "tool_call"},  {&text_tool_calls, "tool_calls"},
        {&text_success, "success"},       {&text_error, "error"},           {&text_method, "model_validate_json"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        *texts[i].place = PyUnicode_InternFromString(texts[i].text);
        if (*texts[i].place == NULL) {
            return -1;
        }
    }
    no_arguments = PyTuple_New(0);
    plain_new = (newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new);
    return no_arguments == NULL || plain_new == NULL ? -1 : 0;
}

PyMODINIT_FUNC
PyInit__revive(void)
{
    PyObject *module = intern() < 0 ? NULL : PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    messages_type = (PyTypeObject *)PyType_FromSpec(&messages_spec);
    hook_type = (PyTypeObject *)PyType_FromSpec(&hook_spec);
    if (messages_type == NULL || hook_type == NULL ||
        PyModule_AddObjectRef(module, "Messages", (PyObject *)messages_type) < 0 ||
        PyModule_AddObjectRef(module, "Hook", (PyObject *)hook_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
