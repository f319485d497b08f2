/* Tables: the names and version labels of a checkpoint in numbers, as its header keeps them, and where its values lie.
 *
 * What is numbered are dicts, strings, ints and floats of exactly the built-in types, so no code of theirs runs. The collector
 * may, and let another thread change a dict.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_unpack.h"

/* Whether `value` is a dict of version labels by name. */
static int
are_labels(PyObject *value)
{
    PyObject *name, *label;
    Py_ssize_t place = 0;
    if (!PyDict_CheckExact(value)) {
        return 0;
    }
    while (PyDict_Next(value, &place, &name, &label)) {
        if (!PyUnicode_CheckExact(name) ||
            !(PyUnicode_CheckExact(label) || PyLong_CheckExact(label) || PyFloat_CheckExact(label))) {
            return 0;
        }
    }
    return 1;
}

static int
are_all_labels(PyObject *seen)
{
    PyObject *node, *labels;
    Py_ssize_t place = 0;
    if (!PyDict_CheckExact(seen)) {
        return 0;
    }
    while (PyDict_Next(seen, &place, &node, &labels)) {
        if (!PyUnicode_CheckExact(node) || !are_labels(labels)) {
            return 0;
        }
    }
    return 1;
}

/* The number of `key` in `table`, which grows: a new reference. */
static PyObject *
number_of(PyObject *table, PyObject *key)
{
    PyObject *number = PyDict_GetItemWithError(table, key);
    if (number != NULL) {
        Py_INCREF(number);
        return number;
    }
    if (PyErr_Occurred() || (number = PyLong_FromSsize_t(PyDict_Size(table))) == NULL) {
        return NULL;
    }
    if (PyDict_SetItem(table, key, number) < 0) {
        Py_DECREF(number);
        return NULL;
    }
    return number;
}

/* The same for a label. By type too: 1 and 1.0 are equal, and a thread's versions must keep their type. */
static PyObject *
number_of_label(PyObject *table, PyObject *labels, PyObject *label)
{
    Py_ssize_t before = PyDict_Size(table);
    PyObject *number;
    if (PyUnicode_CheckExact(label)) {
        number = number_of(table, label);
    }
    else {
        PyObject *key = PyTuple_Pack(2, (PyObject *)Py_TYPE(label), label);
        number = key == NULL ? NULL : number_of(table, key);
        Py_XDECREF(key);
    }
    if (number != NULL && PyDict_Size(table) > before && PyList_Append(labels, label) < 0) {
        Py_CLEAR(number);
    }
    return number;
}

/* A dict of labels as a list: the number of a name, the number of its label, and so on. */
static PyObject *
flattened(PyObject *source, PyObject *names, PyObject *table, PyObject *labels)
{
    PyObject *name, *label, *flat = PyList_New(2 * PyDict_Size(source));
    Py_ssize_t place = 0, at = 0;
    while (flat != NULL && PyDict_Next(source, &place, &name, &label)) {
        PyObject *first = number_of(names, name);
        PyObject *second = first == NULL ? NULL : number_of_label(table, labels, label);
        if (second == NULL) {
            Py_XDECREF(first);
            Py_CLEAR(flat);
        }
        else if (PyList_SetItem(flat, at++, first) < 0) {
            Py_DECREF(second);
            Py_CLEAR(flat);
        }
        else if (PyList_SetItem(flat, at++, second) < 0) {
            Py_CLEAR(flat);
        }
    }
    if (flat != NULL && at != PyList_Size(flat)) {
        PyErr_SetString(PyExc_RuntimeError, "a dict of versions changed its size meanwhile");
        Py_CLEAR(flat);
    }
    return flat;
}

static PyObject *
numbered(PyObject *module, PyObject *args)
{
    PyObject *names, *versions, *seen, *current = NULL, *read = NULL, *found = NULL, *node, *each;
    if (!PyArg_ParseTuple(args, "O!OO", &PyDict_Type, &names, &versions, &seen)) {
        return NULL;
    }
    if (names == versions || names == seen || !are_labels(versions) || !are_all_labels(seen)) {
        Py_RETURN_NONE;
    }
    PyObject *table = PyDict_New(), *labels = PyList_New(0);
    if (table != NULL && labels != NULL && (current = flattened(versions, names, table, labels)) != NULL) {
        read = PyDict_New();
    }
    for (Py_ssize_t place = 0; read != NULL && PyDict_Next(seen, &place, &node, &each);) {
        PyObject *flat = flattened(each, names, table, labels);
        if (flat == NULL || PyDict_SetItem(read, node, flat) < 0) {
            Py_CLEAR(read);
        }
        Py_XDECREF(flat);
    }
    if (read != NULL) {
        found = PyTuple_Pack(3, labels, current, read);
    }
    Py_XDECREF(table);
    Py_XDECREF(labels);
    Py_XDECREF(current);
    Py_XDECREF(read);
    return found;
}

/* The next `count` of the names that begin at `at`. */
static PyObject *
read_names(Reader at, uint64_t count)
{
    PyObject *names = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; names != NULL && i < (Py_ssize_t)count; i++) {
        PyObject *name = read_key(&at);
        if (name == NULL || PyList_SetItem(names, i, name) < 0) {
            Py_CLEAR(names);
        }
    }
    return names;
}

/* [front, [writers, layouts]], where a front is [kind, [name, ...], ...]. */
static PyObject *
lying(PyObject *module, PyObject *payload)
{
    Reader reader;
    uint64_t parts, fields, count, lists, found;
    PyObject *writers, *layouts, *names, *made = NULL;
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(payload, &data, &size) < 0) {
        return NULL;
    }
    reader.at = (const unsigned char *)data;
    reader.end = reader.at + size;
    if (!read_array(&reader, &parts) || parts != 2 || !read_array(&reader, &fields) || fields < 2 ||
        !skip_value(&reader) || !read_array(&reader, &count)) {
        Py_RETURN_NONE;
    }
    Reader first = reader;
    for (uint64_t rest = count; rest > 0; rest--) {
        if (!skip_value(&reader)) {
            Py_RETURN_NONE;
        }
    }
    for (fields -= 2; fields > 0; fields--) {
        if (!skip_value(&reader)) {
            Py_RETURN_NONE;
        }
    }
    if (!read_array(&reader, &lists) || lists != 2) {
        Py_RETURN_NONE;
    }
    writers = read_value(&reader, 0);
    layouts = writers == NULL ? NULL : read_value(&reader, 0);
    if (layouts != NULL && reader.at == reader.end && PyList_Check(writers) && PyList_Check(layouts)) {
        found = (uint64_t)PyList_Size(layouts);
        names = found > count ? NULL : read_names(first, found);
        made = names == NULL ? NULL : PyTuple_Pack(3, names, writers, layouts);
        Py_XDECREF(names);
    }
    Py_XDECREF(writers);
    Py_XDECREF(layouts);
    if (made == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return made;
}

static PyMethodDef functions[] = {
    {"numbered", numbered, METH_VARARGS,
     "numbered(names, versions, seen) -> tuple[list, list, dict] | None\n\n"
     "The distinct labels in the order in which they are met, and a checkpoint's channel_versions and versions_seen with\n"
     "numbers in the place of names and labels. `names` gives each name its number, and grows. None, and nothing grows, where\n"
     "these are not dicts of strings, ints and floats."},
    {"lying", lying, METH_O,
     "lying(payload) -> tuple[list[str], list, list] | None\n\n"
     "The names of a header's values, its writers and its layouts, without building what else it says. None where it is not\n"
     "as it usually is."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "milepost_speedups._tables", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__tables(void)
{
    return PyModule_Create(&definition);
}
