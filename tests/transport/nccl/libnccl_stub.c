/* What nccl4py asks of libnccl, answered by one process of itself: each work is in progress for a few questions. Written
   from the public API, to prove that our calls are those that the real nccl4py takes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int questions, revoked, aborted; char error[64]; } Comm;
typedef struct { char bytes[128]; } UniqueId;

enum { SUCCESS = 0, INVALID = 4, REMOTE = 6, IN_PROGRESS = 7 };
static int depth, pending;
static Comm *last, *child, **child_at;

static int tell(const char* what) { printf("%s\n", what); fflush(stdout); return SUCCESS; }
static Comm* made(void) { Comm* comm = calloc(1, sizeof *comm); comm->questions = 3; return comm; }
static int busy(Comm* comm) { comm->questions = 3; return IN_PROGRESS; }

int ncclGetVersion(int* version) { *version = 23203; return SUCCESS; }
int ncclGetUniqueId(UniqueId* id) { memset(id, 7, sizeof *id); return SUCCESS; }
const char* ncclGetErrorString(int result) { return result == REMOTE ? "remote process exited" : "no error"; }
const char* ncclGetLastError(Comm* comm) { return comm ? comm->error : ""; }
int ncclCommInitRankScalable(Comm** comm, int n, int rank, int ids, UniqueId* id, void* config) {
    if (n != 3 || rank != 1 || ids != 1 || id->bytes[5] != 7 || !config) return INVALID;
    *comm = made();
    tell("init");
    return IN_PROGRESS;
}
int ncclCommGetAsyncError(Comm* comm, int* state) {
    if (comm->aborted) abort();
    *state = comm->questions ? (--comm->questions, IN_PROGRESS) : comm->error[0] ? REMOTE : SUCCESS;
    if (!comm->questions && child) { *child_at = child; child = NULL; }
    return SUCCESS;
}
int ncclGroupStart(void) { ++depth; return SUCCESS; }
int ncclGroupEnd(void) {
    if (--depth || !pending) return SUCCESS;
    pending = 0;
    tell("group");
    return busy(last);
}
static int work(Comm* comm, const char* what) {
    if (comm->questions) return INVALID;
    tell(what);
    last = comm;
    if (depth) { pending = 1; return SUCCESS; }
    return busy(comm);
}
int ncclSend(void* buffer, size_t count, int type, int peer, Comm* comm, void* stream) {
    return buffer == (void*)4096 && count == 10 && type == 1 && peer == 2 && stream == (void*)99 ? work(comm, "send") : INVALID;
}
int ncclRecv(void* buffer, size_t count, int type, int peer, Comm* comm, void* stream) {
    return buffer == (void*)8192 && count == 20 && type == 1 && peer == 0 && stream == (void*)99 ? work(comm, "recv") : INVALID;
}
int ncclAllReduce(void* source, void* target, size_t count, int type, int op, Comm* comm, void* stream) {
    if (count == 13) strcpy(comm->error, "a cable");
    return source == (void*)4096 && target == (void*)8192 && type == 7 && op == 0 ? work(comm, "all_reduce") : INVALID;
}
int ncclCommRevoke(Comm* comm, int flags) { comm->revoked = 1; comm->error[0] = 0; tell("revoke"); return busy(comm); }
int ncclCommShrink(Comm* comm, int* absent, int count, Comm** shrunk, void* config, int flags) {
    if (!comm->revoked || count != 1 || absent[0] != 2 || flags != 1) return INVALID;
    child = made(), child_at = shrunk;
    tell("shrink");
    return busy(comm);
}
int ncclCommGetUniqueId(Comm* comm, UniqueId* id) { memset(id, 9, sizeof *id); return comm ? tell("growth_id") : INVALID; }
int ncclCommGrow(Comm* comm, int n, const UniqueId* id, int rank, Comm** grown, void* config) {
    // This process has asked for the id, or comes in by it.
    if (n != 4 || !id || id->bytes[5] != 9 || rank != (comm ? -1 : 3) || !config) return INVALID;
    tell(comm ? "grow" : "come_in");
    if (!comm) { *grown = made(); return IN_PROGRESS; }
    child = made(), child_at = grown;
    return busy(comm);
}
int ncclCommFinalize(Comm* comm) { tell("finalize"); return busy(comm); }
int ncclCommDestroy(Comm* comm) { comm->aborted = 1; return tell("destroy"); }
int ncclCommAbort(Comm* comm) { comm->aborted = 1; return tell("abort"); }
