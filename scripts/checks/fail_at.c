/* Runs a command and makes one of its operations on files fail, or kills the command there.
 *
 *     fail_at DIR LOG DELETED WHICH FAULT COMMAND...
 *
 * DIR      operations on this directory and everything in it count; an absolute path without links
 * LOG      one line per operation, with tabs: number, kind, result, path, second path, size, fault
 * DELETED  operations that remove or replace a file link it here first, under their number
 * WHICH    the number of the operation, from 1; 0 for none; A-B for several; =SUFFIX for the first
 *          rename to a path that ends in it
 * FAULT    error:ERRNO   it fails and changes nothing
 *          short:ERRNO   a write writes the first half, and the next one to the same file fails;
 *                        other operations fail
 *          before, after the command is killed before or after it
 *          half          the command is killed after the first half of a write, or after another
 *                        operation
 *
 * Used by scripts/check-checkpoints. It traces system calls (ptrace, with a seccomp filter that
 * stops only at those below), because some libraries make system calls without the C library.
 * All threads of the command are killed before any of them does another operation. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "fail_at.c changes registers of x86-64; other processors are not supported"
#endif

#define NONE (-1) /* no argument */

/* Which arguments name files. `dir` and `dir2` are descriptors of directories, `path` and `path2` names
 * in them, `fd` an open file. */
static const struct call {
    long number;
    const char *kind;
    int dir, path, dir2, path2, fd, count;
} CALLS[] = {
    {SYS_open, "open", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_creat, "open", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_openat, "open", 0, 1, NONE, NONE, NONE, NONE},
    {SYS_openat2, "open", 0, 1, NONE, NONE, NONE, NONE},
    {SYS_write, "write", NONE, NONE, NONE, NONE, 0, 2},
    {SYS_pwrite64, "write", NONE, NONE, NONE, NONE, 0, 2},
    {SYS_writev, "write", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_pwritev, "write", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_pwritev2, "write", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_sendfile, "write", NONE, NONE, NONE, NONE, 0, 3},
    {SYS_copy_file_range, "write", NONE, NONE, NONE, NONE, 2, 4},
    {SYS_fsync, "sync", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_fdatasync, "sync", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_ftruncate, "resize", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_truncate, "resize", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_fallocate, "resize", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_rename, "rename", NONE, 0, NONE, 1, NONE, NONE},
    {SYS_renameat, "rename", 0, 1, 2, 3, NONE, NONE},
    {SYS_renameat2, "rename", 0, 1, 2, 3, NONE, NONE},
    {SYS_link, "link", NONE, 0, NONE, 1, NONE, NONE},
    {SYS_linkat, "link", 0, 1, 2, 3, NONE, NONE},
    {SYS_symlink, "symlink", NONE, 1, NONE, NONE, NONE, NONE},
    {SYS_symlinkat, "symlink", 1, 2, NONE, NONE, NONE, NONE},
    {SYS_unlink, "unlink", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_unlinkat, "unlink", 0, 1, NONE, NONE, NONE, NONE},
    {SYS_rmdir, "rmdir", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_mkdir, "mkdir", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_mkdirat, "mkdir", 0, 1, NONE, NONE, NONE, NONE},
    {SYS_chmod, "chmod", NONE, 0, NONE, NONE, NONE, NONE},
    {SYS_fchmod, "chmod", NONE, NONE, NONE, NONE, 0, NONE},
    {SYS_fchmodat, "chmod", 0, 1, NONE, NONE, NONE, NONE},
    {SYS_flock, "lock", NONE, NONE, NONE, NONE, 0, NONE},
};
enum { CALL_COUNT = sizeof CALLS / sizeof *CALLS };

/* An operation between its start and its end, by thread. */
struct operation {
    pid_t thread;
    long number;
    const char *kind, *fault;
    char path[PATH_MAX], path2[PATH_MAX];
    int fd; /* of the thread, or -1 */
    int kills;
};

static const char *dir, *deleted, *suffix, *fault;
static long first, last, fault_errno, counted;
static FILE *log_file;
static char short_path[PATH_MAX]; /* the file whose next write fails */
static struct operation pending[64];

static void fail(const char *what) {
    fprintf(stderr, "fail_at: %s: %s\n", what, strerror(errno));
    exit(125);
}

static unsigned long long *argument(struct user_regs_struct *regs, int n) {
    unsigned long long *all[] = {&regs->rdi, &regs->rsi, &regs->rdx, &regs->r10, &regs->r8, &regs->r9};
    return all[n];
}

static void path_of_link(pid_t thread, const char *link, char *out) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/%s", thread, link);
    ssize_t length = readlink(name, out, PATH_MAX - 1);
    out[length > 0 ? length : 0] = 0;
}

static void path_of_fd(pid_t thread, int fd, char *out) {
    char link[32];
    snprintf(link, sizeof link, "fd/%d", fd);
    path_of_link(thread, link, out);
}

/* The path that a thread names by a directory's descriptor and an address. */
static void path_of_name(pid_t thread, int at, unsigned long long address, char *out) {
    char name[PATH_MAX];
    size_t length = 0;
    /* Not beyond the end of a page, because the next page may not exist. */
    while (length < sizeof name - 1) {
        size_t step = 4096 - (address + length) % 4096;
        if (step > sizeof name - 1 - length) step = sizeof name - 1 - length;
        struct iovec here = {name + length, step}, there = {(void *)(address + length), step};
        ssize_t got = process_vm_readv(thread, &here, 1, &there, 1, 0);
        if (got <= 0 || memchr(name + length, 0, got)) {
            length += got > 0 ? got : 0;
            break;
        }
        length += got;
    }
    name[length < sizeof name ? length : sizeof name - 1] = 0;
    out[0] = 0;
    if (name[0] != '/') {
        if (at == AT_FDCWD) path_of_link(thread, "cwd", out);
        else path_of_fd(thread, at, out);
        strncat(out, "/", PATH_MAX - strlen(out) - 1);
    }
    strncat(out, name, PATH_MAX - strlen(out) - 1);
}

static int is_inside(const char *path) {
    size_t length = strlen(dir);
    return strncmp(path, dir, length) == 0 && (path[length] == 0 || path[length] == '/');
}

static int exists(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

static int ends_with(const char *path, const char *end) {
    size_t length = strlen(path), of_end = strlen(end);
    return length >= of_end && strcmp(path + length - of_end, end) == 0;
}

/* Reads the operation that a thread is about to do. Returns whether it is one on the directory. */
static int read_operation(struct operation *op, const struct call *call, pid_t thread, struct user_regs_struct *regs) {
    op->thread = thread;
    op->kind = call->kind;
    op->fd = call->fd == NONE ? -1 : (int)*argument(regs, call->fd);
    op->path[0] = op->path2[0] = 0;
    if (call->fd != NONE) path_of_fd(thread, op->fd, op->path);
    int at = call->dir == NONE ? AT_FDCWD : (int)*argument(regs, call->dir);
    if (call->path != NONE) path_of_name(thread, at, *argument(regs, call->path), op->path);
    int at2 = call->dir2 == NONE ? AT_FDCWD : (int)*argument(regs, call->dir2);
    if (call->path2 != NONE) path_of_name(thread, at2, *argument(regs, call->path2), op->path2);
    if (!is_inside(op->path) && !is_inside(op->path2)) return 0;
    /* A thread looks for this file all the time: with it, numbers would differ from run to run. */
    if (ends_with(op->path, "/stop-request.json")) return 0;
    if (strcmp(op->kind, "open") == 0) {
        unsigned long long how = call->number == SYS_open ? regs->rsi : call->number == SYS_openat ? regs->rdx : 0;
        struct iovec here = {&how, sizeof how}, there = {(void *)regs->rdx, sizeof how};
        if (call->number == SYS_openat2) process_vm_readv(thread, &here, 1, &there, 1, 0);
        if (call->number == SYS_creat) how = O_CREAT | O_TRUNC;
        if ((how & O_CREAT) && !exists(op->path)) op->kind = "create";
        else if (how & O_TRUNC) op->kind = "empty";
    }
    if (call->number == SYS_unlinkat && (regs->rdx & AT_REMOVEDIR)) op->kind = "rmdir";
    return 1;
}

/* Links a file that is about to be removed or replaced. */
static void save_deleted(const struct operation *op) {
    const char *victim = strcmp(op->kind, "unlink") == 0 ? op->path : strcmp(op->kind, "rename") == 0 ? op->path2 : NULL;
    char saved[PATH_MAX];
    if (victim && snprintf(saved, sizeof saved, "%s/%ld", deleted, op->number) < (int)sizeof saved)
        linkat(AT_FDCWD, victim, AT_FDCWD, saved, 0); /* fails for directories, which are never replaced */
}

static void write_log(const struct operation *op, long long result) {
    char name[64];
    struct stat status = {0};
    snprintf(name, sizeof name, "/proc/%d/fd/%d", op->thread, op->fd);
    long long size = op->fd >= 0 && stat(name, &status) == 0 ? status.st_size : 0;
    fprintf(log_file, "%ld\t%s\t%lld\t%s\t%s\t%lld\t%s\n", op->number, op->kind, result, op->path, op->path2, size, op->fault);
    fflush(log_file);
}

static void set_registers(pid_t thread, struct user_regs_struct *regs) {
    if (ptrace(PTRACE_SETREGS, thread, 0, regs)) fail("setting registers");
}

/* Makes the call fail without doing it. */
static void inject(struct operation *op, struct user_regs_struct *regs) {
    regs->orig_rax = -1;
    regs->rax = -fault_errno;
    set_registers(op->thread, regs);
    op->fault = fault;
    write_log(op, -fault_errno);
}

static struct operation *pending_of(pid_t thread) {
    for (size_t i = 0; i < sizeof pending / sizeof *pending; i++)
        if (pending[i].thread == thread) return &pending[i];
    return NULL;
}

/* Kills the command and waits until all of it is gone. */
static void kill_command(pid_t command) {
    kill(command, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR) {
    }
    exit(128 + SIGKILL);
}

/* At the start of a system call. Returns how to continue the thread. */
static int start_call(pid_t command, pid_t thread) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, thread, 0, &regs)) return PTRACE_CONT;
    const struct call *call = NULL;
    for (int i = 0; i < CALL_COUNT; i++)
        if (CALLS[i].number == (long)regs.orig_rax) call = &CALLS[i];
    struct operation op = {.fault = "-"};
    if (!call || !read_operation(&op, call, thread, &regs)) return PTRACE_CONT;
    op.number = ++counted;
    int is_write = strcmp(op.kind, "write") == 0, is_cut = 0;
    if (is_write && short_path[0] && strcmp(short_path, op.path) == 0) {
        short_path[0] = 0;
        inject(&op, &regs);
        return PTRACE_CONT;
    }
    if (suffix && strcmp(op.kind, "rename") == 0 && ends_with(op.path2, suffix)) {
        first = last = counted;
        suffix = NULL;
    }
    if (counted >= first && counted <= last) {
        unsigned long long *count = call->count == NONE ? NULL : argument(&regs, call->count);
        is_cut = is_write && count && *count >= 2 && (strncmp(fault, "short", 5) == 0 || strcmp(fault, "half") == 0);
        if (strcmp(fault, "before") == 0) {
            op.fault = fault;
            write_log(&op, 0);
            kill_command(command);
        }
        if (is_cut) {
            *count /= 2;
            set_registers(thread, &regs);
            if (fault_errno) strcpy(short_path, op.path);
        } else if (fault_errno) {
            inject(&op, &regs);
            return PTRACE_CONT;
        }
        op.fault = fault;
        op.kills = !fault_errno;
    }
    save_deleted(&op);
    struct operation *slot = pending_of(0);
    if (!slot) fail("too many threads");
    *slot = op;
    return PTRACE_SYSCALL;
}

static void end_call(pid_t command, pid_t thread) {
    struct operation *op = pending_of(thread);
    struct user_regs_struct regs;
    if (!op || ptrace(PTRACE_GETREGS, thread, 0, &regs)) return;
    write_log(op, (long long)regs.rax);
    op->thread = 0;
    if (op->kills) kill_command(command);
}

static void run_command(char **command) {
    struct sock_filter code[CALL_COUNT + 3];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALL_COUNT; i++)
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)CALLS[i].number, CALL_COUNT - i, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog program = {n, code};
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) fail("tracing");
    raise(SIGSTOP);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        fail("setting a seccomp filter");
    execvp(command[0], command);
    fail(command[0]);
}

int main(int count, char **arguments) {
    if (count < 7) {
        fprintf(stderr, "usage: fail_at DIR LOG DELETED WHICH FAULT COMMAND...\n");
        return 125;
    }
    dir = arguments[1];
    deleted = arguments[3];
    log_file = fopen(arguments[2], "w");
    if (!log_file) fail(arguments[2]);
    if (arguments[4][0] == '=') suffix = arguments[4] + 1;
    else if (sscanf(arguments[4], "%ld-%ld", &first, &last) == 1) last = first;
    fault = arguments[5];
    const char *number = strchr(fault, ':');
    fault_errno = number ? atol(number + 1) : 0;
    pid_t command = fork();
    if (command == 0) run_command(arguments + 6);
    int status;
    if (command < 0 || waitpid(command, &status, 0) != command || !WIFSTOPPED(status)) fail("starting the command");
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL |
                   PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, command, 0, options)) fail("tracing");
    ptrace(PTRACE_CONT, command, 0, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) {
            if (errno == EINTR) continue;
            fail("waiting for the command");
        }
        if (!WIFSTOPPED(status)) {
            if (thread == command) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int how = PTRACE_CONT;
        long signal = 0;
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) how = start_call(command, thread);
        else if (WSTOPSIG(status) == (SIGTRAP | 0x80)) end_call(command, thread);
        else if (status >> 16 == 0 && WSTOPSIG(status) != SIGSTOP) signal = WSTOPSIG(status);
        ptrace(how, thread, 0, signal);
    }
}
