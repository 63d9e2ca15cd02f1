/* For initdb under a uid that no account has: it looks its own name up, and ends where there is none. This library is
 * loaded before the C library's (LD_PRELOAD) and answers that question, whatever the uid. The server never asks it. */

#include <pwd.h>
#include <stddef.h>
#include <unistd.h>

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
