/* For initdb under a uid that no account has: it looks its own name up, and ends where there is none. This library is
 * loaded before the C library's (LD_PRELOAD) and answers that question, whatever the uid. The server never asks it.
 *
 * It is built as a Python module because that is what a package can bring, and importing it does nothing. In initdb there
 * is no Python, so what the module needs of it is weak. */

#include <Python.h>
#include <pwd.h>
#include <stddef.h>
#include <unistd.h>

#pragma weak PyModule_Create2

static struct passwd entry_of(uid_t uid)
{
    struct passwd entry = {
        .pw_name = "kappa-postgres", .pw_passwd = "*", .pw_uid = uid, .pw_gid = getegid(),
        .pw_gecos = "", .pw_dir = "/nonexistent", .pw_shell = "/bin/false",
    };
    return entry;
}

struct passwd *getpwuid(uid_t uid)
{
    static struct passwd found;
    found = entry_of(uid);
    return &found;
}

int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **result)
{
    (void)buffer;
    (void)size;
    *entry = entry_of(uid);
    *result = entry;
    return 0;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_passwd", .m_size = -1};

PyMODINIT_FUNC PyInit__passwd(void)
{
    return PyModule_Create(&module);
}
