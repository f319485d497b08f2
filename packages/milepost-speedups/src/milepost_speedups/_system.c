/* System: what the writer of a log asks of the system before and after it writes, in one step each.
 *
 * Others wait for these steps. A thread that gives up the interpreter for a call gets it back when no other one wants it: with
 * many at work that takes far longer than calls that are answered from memory, as these are for a file that is in use.
 *
 * Nothing here asks when a file was changed. Since Linux 6.13, a file whose time was asked for gets another one with its next
 * write, in nanoseconds, and its inode has to be written with it: a sync of a preallocated file takes half as long again.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
#include <unistd.h>

#define MOST 64

static PyObject *
lock(PyObject *module, PyObject *args)
{
    int fd, taken;
    long long end;
    Py_ssize_t length, got = 0;
    off_t size;
    char tail[MOST];
    if (!PyArg_ParseTuple(args, "iLn", &fd, &end, &length)) {
        return NULL;
    }
    if (length < 0 || length > MOST) {
        PyErr_Format(PyExc_ValueError, "length must be from 0 to %d", MOST);
        return NULL;
    }
    do {
        taken = flock(fd, LOCK_EX | LOCK_NB);
    } while (taken < 0 && errno == EINTR);
    if (taken < 0) {
        if (errno == EWOULDBLOCK) {
            Py_RETURN_NONE;
        }
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    size = lseek(fd, 0, SEEK_END);
    if (size > end) {
        do {
            got = pread(fd, tail, (size_t)length, (off_t)end);
        } while (got < 0 && errno == EINTR);
    }
    if (size < 0 || got < 0) {
        int number = errno;
        flock(fd, LOCK_UN);
        errno = number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("LLy#", end, (long long)size, tail, got);
}

/* Which file `path` names. */
static int
identify(const char *path, unsigned long long *device, unsigned long long *inode)
{
#ifdef STATX_INO
    struct statx found;
    if (statx(AT_FDCWD, path, 0, STATX_INO, &found) == 0) {
        *device = makedev(found.stx_dev_major, found.stx_dev_minor);
        *inode = found.stx_ino;
        return 0;
    }
    /* A kernel before 4.11, or a filter of system calls that does not know this one. */
    if (errno != ENOSYS && errno != EPERM) {
        return -1;
    }
#endif
    struct stat status;
    if (stat(path, &status) < 0) {
        return -1;
    }
    *device = (unsigned long long)status.st_dev;
    *inode = (unsigned long long)status.st_ino;
    return 0;
}

static PyObject *
confirm(PyObject *module, PyObject *args)
{
    int fd, good;
    unsigned long long device, inode, there, number;
    PyObject *path, *fence;
    if (!PyArg_ParseTuple(args, "iSKKS", &fd, &path, &device, &inode, &fence)) {
        return NULL;
    }
    if (identify(PyBytes_AsString(path), &there, &number) < 0) {
        if (errno == ENOENT) {
            Py_RETURN_FALSE;
        }
        int failed = errno;
        PyObject *name = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(path), PyBytes_Size(path));
        if (name != NULL) {
            errno = failed;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name);
            Py_DECREF(name);
        }
        return NULL;
    }
    good = there == device && number == inode && access(PyBytes_AsString(fence), F_OK) < 0;
    if (good && fd >= 0) {
        flock(fd, LOCK_UN);
    }
    return PyBool_FromLong(good);
}

static PyMethodDef functions[] = {
    {"lock", lock, METH_VARARGS,
     "lock(fd, end, length) -> tuple[int, int, bytes] | None\n\n"
     "Lock an open file, unless somebody else has it locked (None). `end`, how many bytes the file has, and which of them\n"
     "follow the offset `end`, up to `length`. Moves the place in the file. Raises OSError; then it is not locked."},
    {"confirm", confirm, METH_VARARGS,
     "confirm(fd, path, device, inode, fence) -> bool\n\n"
     "Whether `path` is the file of that device and inode, and there is no file `fence`. If so the lock is given back, unless\n"
     "`fd` is -1. Raises OSError."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "milepost_speedups._system", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__system(void)
{
    return PyModule_Create(&definition);
}
