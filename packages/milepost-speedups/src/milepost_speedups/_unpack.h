/* Msgpack to plain Python objects: those of its kinds that LangChain messages are made of, which is all but extensions
 * and keys that are not text.
 *
 * A function that returns an object returns NULL without an error set where the bytes are for ormsgpack: because they are
 * of another kind, or are no msgpack, which it tells better.
 */

#ifndef MILEPOST_UNPACK_H
#define MILEPOST_UNPACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *at, *end;
} Reader;

enum { DEEPEST = 32, LONGEST_KEY = 32, KEYS = 512 };

/* Names of fields and arguments recur. One text for each that was met last in its place. */
static PyObject *keys[KEYS];

static PyObject *read_value(Reader *reader, int depth);

static size_t
left(const Reader *reader)
{
    return (size_t)(reader->end - reader->at);
}

/* An unsigned number of `size` bytes, of which the first is the greatest. */
static int
read_number(Reader *reader, size_t size, uint64_t *number)
{
    if (left(reader) < size) {
        return 0;
    }
    *number = 0;
    for (size_t i = 0; i < size; i++) {
        *number = *number << 8 | *reader->at++;
    }
    return 1;
}

/* What follows of a head whose kind has lengths of 1, 2 or 4 bytes, the first of them under `least`. */
static int
read_length(Reader *reader, unsigned head, unsigned least, uint64_t *length)
{
    return read_number(reader, (size_t)1 << (head - least), length);
}

/* The bytes of a text. 0 where there is none. */
static int
read_span(Reader *reader, const char **text, size_t *size)
{
    uint64_t length;
    if (left(reader) < 1) {
        return 0;
    }
    unsigned head = *reader->at++;
    if (head >= 0xa0 && head <= 0xbf) {
        length = head & 31;
    } else if (head < 0xd9 || head > 0xdb || !read_length(reader, head, 0xd9, &length)) {
        return 0;
    }
    if (length > left(reader)) {
        return 0;
    }
    *text = (const char *)reader->at;
    *size = (size_t)length;
    reader->at += length;
    return 1;
}

static PyObject *
text_of(const char *text, size_t size)
{
    PyObject *made = PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, NULL);
    if (made == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
    }
    return made;
}

static PyObject *
read_key(Reader *reader)
{
    const char *text;
    size_t size;
    if (!read_span(reader, &text, &size)) {
        return NULL;
    }
    if (size > LONGEST_KEY) {
        return text_of(text, size);
    }
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    }
    PyObject **place = &keys[(hash ^ hash >> 15) % KEYS];
    if (*place != NULL) {
        Py_ssize_t length;
        const char *known = PyUnicode_AsUTF8AndSize(*place, &length);
        if (known == NULL) {
            return NULL;
        }
        if ((size_t)length == size && memcmp(known, text, size) == 0) {
            Py_INCREF(*place);
            return *place;
        }
    }
    PyObject *made = text_of(text, size);
    if (made != NULL) {
        PyObject *old = *place;
        Py_INCREF(made);
        *place = made;
        Py_XDECREF(old);
    }
    return made;
}

static PyObject *
read_list(Reader *reader, uint64_t count, int depth)
{
    if (depth >= DEEPEST || count > left(reader)) {
        return NULL;
    }
    PyObject *made = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; made != NULL && i < (Py_ssize_t)count; i++) {
        PyObject *value = read_value(reader, depth + 1);
        if (value == NULL || PyList_SetItem(made, i, value) < 0) {
            Py_DECREF(made);
            return NULL;
        }
    }
    return made;
}

static PyObject *
read_dict(Reader *reader, uint64_t count, int depth)
{
    if (depth >= DEEPEST || count > left(reader) / 2) {
        return NULL;
    }
    PyObject *made = PyDict_New();
    for (uint64_t i = 0; made != NULL && i < count; i++) {
        PyObject *key = read_key(reader), *value = key == NULL ? NULL : read_value(reader, depth + 1);
        int failed = value == NULL || PyDict_SetItem(made, key, value) < 0;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (failed) {
            Py_DECREF(made);
            return NULL;
        }
    }
    return made;
}

static PyObject *
read_float(Reader *reader, size_t size)
{
    uint64_t bits;
    if (!read_number(reader, size, &bits)) {
        return NULL;
    }
    if (size == 4) {
        uint32_t half = (uint32_t)bits;
        float value;
        memcpy(&value, &half, sizeof value);
        return PyFloat_FromDouble(value);
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return PyFloat_FromDouble(value);
}

static PyObject *
read_signed(Reader *reader, size_t size)
{
    uint64_t number;
    if (!read_number(reader, size, &number)) {
        return NULL;
    }
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    return PyLong_FromLongLong((int64_t)((number ^ sign) - sign));
}

static PyObject *
read_bytes(Reader *reader, unsigned head)
{
    uint64_t length;
    if (!read_length(reader, head, 0xc4, &length) || length > left(reader)) {
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize((const char *)reader->at, (Py_ssize_t)length);
    reader->at += length;
    return made;
}

static PyObject *
read_value(Reader *reader, int depth)
{
    uint64_t number;
    if (left(reader) < 1) {
        return NULL;
    }
    unsigned head = *reader->at;
    if ((head >= 0xa0 && head <= 0xbf) || (head >= 0xd9 && head <= 0xdb)) {
        const char *text;
        size_t size;
        return read_span(reader, &text, &size) ? text_of(text, size) : NULL;
    }
    reader->at++;
    if (head < 0x80) {
        return PyLong_FromLong((long)head);
    }
    if (head >= 0xe0) {
        return PyLong_FromLong((long)head - 0x100);
    }
    if (head <= 0x8f) {
        return read_dict(reader, head & 15, depth);
    }
    if (head <= 0x9f) {
        return read_list(reader, head & 15, depth);
    }
    switch (head) {
    case 0xc0:
        Py_RETURN_NONE;
    case 0xc2:
        Py_RETURN_FALSE;
    case 0xc3:
        Py_RETURN_TRUE;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return read_bytes(reader, head);
    case 0xca:
        return read_float(reader, 4);
    case 0xcb:
        return read_float(reader, 8);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        return read_number(reader, (size_t)1 << (head - 0xcc), &number) ? PyLong_FromUnsignedLongLong(number) : NULL;
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return read_signed(reader, (size_t)1 << (head - 0xd0));
    case 0xdc:
    case 0xdd:
        return read_number(reader, head == 0xdc ? 2 : 4, &number) ? read_list(reader, number, depth) : NULL;
    case 0xde:
    case 0xdf:
        return read_number(reader, head == 0xde ? 2 : 4, &number) ? read_dict(reader, number, depth) : NULL;
    default:
        return NULL;
    }
}

/* Past one value of any kind, and all that it holds. 0 where there is none. */
static inline int
skip_value(Reader *reader)
{
    uint64_t number, open = 1;
    for (; open > 0; open--) {
        if (left(reader) < open) {
            return 0;
        }
        unsigned head = *reader->at++;
        number = 0;
        if (head < 0x80 || head >= 0xe0 || head == 0xc0 || head == 0xc2 || head == 0xc3) {
            continue;
        }
        if (head <= 0x8f) {
            open += 2 * (head & 15);
        } else if (head <= 0x9f) {
            open += head & 15;
        } else if (head <= 0xbf) {
            number = head & 31;
        } else if (head >= 0xc4 && head <= 0xc6) {
            if (!read_length(reader, head, 0xc4, &number)) {
                return 0;
            }
        } else if (head == 0xca || head == 0xcb) {
            number = head == 0xca ? 4 : 8;
        } else if (head >= 0xcc && head <= 0xd3) {
            number = (uint64_t)1 << ((head - 0xcc) & 3);
        } else if (head >= 0xd9 && head <= 0xdb) {
            if (!read_length(reader, head, 0xd9, &number)) {
                return 0;
            }
        } else if (head >= 0xdc) {
            if (!read_number(reader, head & 1 ? 4 : 2, &number)) {
                return 0;
            }
            open += head >= 0xde ? 2 * number : number;
            number = 0;
        } else if (head >= 0xd4) {
            number = 1 + ((uint64_t)1 << (head - 0xd4));
        } else if (head == 0xc1 || !read_length(reader, head, 0xc7, &number)) {
            return 0;
        } else {
            number++;
        }
        if (number > left(reader)) {
            return 0;
        }
        reader->at += number;
    }
    return 1;
}

/* The number of elements of an array that begins here. 0 where none does. */
static inline int
read_array(Reader *reader, uint64_t *count)
{
    if (left(reader) < 1) {
        return 0;
    }
    unsigned head = *reader->at++;
    if (head >= 0x90 && head <= 0x9f) {
        *count = head & 15;
        return 1;
    }
    return (head == 0xdc || head == 0xdd) && read_number(reader, head == 0xdc ? 2 : 4, count);
}

#endif
