/* Tables: the names and version labels of a checkpoint in numbers, as its header keeps them.
 *
 * What is walked are dicts, strings, ints and floats of exactly the built-in types, so no code of theirs runs. The collector
 * may, and let another thread change a dict.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

static PyMethodDef functions[] = {
    {"numbered", numbered, METH_VARARGS,
     "numbered(names, versions, seen) -> tuple[list, list, dict] | None\n\n"
     "The distinct labels in the order in which they are met, and a checkpoint's channel_versions and versions_seen with\n"
     "numbers in the place of names and labels. `names` gives each name its number, and grows. None, and nothing grows, where\n"
     "these are not dicts of strings, ints and floats."},
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
