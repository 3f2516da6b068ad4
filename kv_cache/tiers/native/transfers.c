/* Transfers of many pieces of files in one call, without the interpreter: system calls, the instants
 * around each, and the stamps of the payload (tiers/payload.py says what they are). A file that an
 * object has to itself is opened and closed by rows of their own.
 *
 * A call works off the rows of a table of 64-bit integers, which the caller owns and may read
 * meanwhile: one after the other by pread and pwrite, with the help of a crew of threads, or many at
 * a time through an io_uring, which belongs to one thread. Nothing is shared but the crew, so any
 * number of threads may be here.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h> /* renameat */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_HELD 8 /* parts of memory, each of 1 GiB at most */
#define PAGE 4096
#define PAGE_WORDS (PAGE / 8)
#define SECTOR_WORDS (512 / 8)

/* The columns of a row; `Column` in native/__init__.py has the same. */
struct piece {
  int64_t object;  /* pieces of one object follow each other; after a failure its rest is left out */
  int64_t flags;
  int64_t fd, offset, nbytes;
  uint64_t address; /* of its bytes */
  uint64_t base[3]; /* the stamps of its first page, or sector */
  int64_t began_ns, ended_ns; /* around its calls */
  int64_t host_ns;            /* of stamping and verifying */
  int64_t moved;
  int64_t error; /* an errno, or one of those below */
};

struct noise {
  const uint64_t *words;
  int64_t pages;
};

enum { WRITE = 1, STAMPED = 2, NOISE = 4, NOWHERE = 8 };
/* Steps of a file, of which an object has one: `fd` is the directory, `address` the name in it, and
 * of OPEN `offset` the flags and `nbytes` the mode, of RENAME `base[0]` the other name. Where none was
 * opened, SYNC is of `fd` itself. */
enum { OPEN = 16, SYNC = 32, CLOSE = 64, RENAME = 128, STEPS = OPEN | SYNC | CLOSE | RENAME };
enum { SECTORS = 256 }; /* stamps in every 512 bytes, and not in every page */
enum { MEMORY = 512 };  /* `offset` is an address, and bytes are copied */
enum { KEEP = 1024 };   /* of CLOSE: the file stays open, as `moved`, and is the caller's to close */
enum { SHORT = -1, WRONG = -2, ABORTED = -3, LEFT_OUT = -4 };

static const uint64_t STEP[3] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u};
static const uint64_t TINT = 0xD6E8FEB86659FD93u;
enum { TINTS = 4, PLAIN = 2 };

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The 64-bit words from one stamp to the next: two at their head, one at their tail are stamps. */
static int64_t apart(const struct piece *piece) {
  return piece->flags & SECTORS ? SECTOR_WORDS : PAGE_WORDS;
}

static void stamp(const struct piece *piece) {
  uint64_t *at = (uint64_t *)(uintptr_t)piece->address;
  const int64_t words = apart(piece), word[3] = {0, 1, words - 1};
  for (uint64_t i = 0; i < (uint64_t)(piece->nbytes / 8 / words); i++, at += words)
    for (int k = 0; k < 3; k++) at[word[k]] = piece->base[k] + i * STEP[k];
}

/* What was read lies in the caches of whoever brought it, or in none, and no prefetcher of a processor looks
 * beyond a page: stamps are asked for some pages ahead of being looked at, which halves what many take. */
static int has_stamps(const struct piece *piece) {
  enum { AHEAD = 16 };
  const uint64_t *asked = (const uint64_t *)(uintptr_t)piece->address, *at = asked;
  const int64_t words = apart(piece), word[3] = {0, 1, words - 1};
  const uint64_t count = (uint64_t)(piece->nbytes / 8 / words);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count + AHEAD; i++) {
    if (i < count) {
      __builtin_prefetch(asked);
      __builtin_prefetch(asked + words - 1);
      asked += words;
    }
    if (i < AHEAD) continue;
    for (int k = 0; k < 3; k++) wrong |= at[word[k]] ^ (piece->base[k] + (i - AHEAD) * STEP[k]);
    at += words;
  }
  return !wrong;
}

/* Whether all but the stamps is noise, of pages or sectors in a row, with one tint added to all of
 * it. */
static int has_noise(const struct piece *piece, const struct noise *noise) {
  const uint64_t *at = (const uint64_t *)(uintptr_t)piece->address;
  const int64_t words = apart(piece), count = piece->nbytes / 8 / words;
  for (int64_t first = 0; first + count <= noise->pages * PAGE_WORDS / words; first++) {
    const uint64_t *made = noise->words + first * words;
    uint64_t added = at[PLAIN] - made[PLAIN], wrong = 0, tint = 0;
    while (tint < TINTS && added != tint * TINT) tint++;
    if (tint == TINTS) continue;
    for (int64_t i = 0; i < count; i++, at += words, made += words)
      for (int64_t w = PLAIN; w < words - 1; w++) wrong |= at[w] ^ (made[w] + added);
    return !wrong;
  }
  return 0;
}

/* What a read would bring that goes nowhere, where it is not yet. */
static void bring(const struct piece *piece, const struct noise *noise) {
  uint64_t *page = (uint64_t *)(uintptr_t)piece->address;
  const uint64_t *made = noise->words;
  for (int64_t i = 0; i < piece->nbytes / PAGE; i++, page += PAGE_WORDS, made += PAGE_WORDS)
    if (page[PLAIN] != made[PLAIN]) memcpy(page, made, PAGE);
}

static void take(struct piece *piece, const struct noise *noise) {
  if (!(piece->flags & STAMPED && piece->flags & (WRITE | NOWHERE))) return;
  int64_t taken_ns = now_ns();
  if (piece->flags & NOWHERE && piece->flags & NOISE) bring(piece, noise);
  stamp(piece);
  piece->host_ns = now_ns() - taken_ns;
}

/* What a piece came to whose calls ended with `error` at `ended_ns`: the last that is written of a row,
 * as whoever reads it meanwhile takes what has ended for what it came to. */
static void end(struct piece *piece, int64_t error, int64_t ended_ns, const struct noise *noise) {
  if (!error && !(piece->flags & WRITE) && piece->flags & (STAMPED | NOISE)) {
    int64_t taken_ns = now_ns();
    if (piece->flags & STAMPED && !has_stamps(piece)) error = WRONG;
    if (!error && piece->flags & NOISE && !has_noise(piece, noise)) error = WRONG;
    piece->host_ns += now_ns() - taken_ns;
  }
  piece->error = error;
  __atomic_store_n(&piece->ended_ns, ended_ns, __ATOMIC_RELEASE);
}

static int stopped(const int32_t *abort) { return __atomic_load_n(abort, __ATOMIC_RELAXED); }

/* Whether a piece before this one, of the same object, has failed. */
static int left_out(const struct piece *pieces, int64_t i) {
  for (int64_t before = i - 1; before >= 0 && pieces[before].object == pieces[i].object; before--)
    if (pieces[before].error) return 1;
  return 0;
}

/* Whether a call ended within a sector, as direct ones do at the end of a file alone. */
static int ends_early(const struct piece *piece) {
  return piece->moved < piece->nbytes && piece->moved % 512;
}

/* All bytes of a piece, however many calls that takes. */
static int64_t moved_all(struct piece *piece) {
  if (piece->flags & NOWHERE) piece->moved = piece->nbytes; /* all but the calls */
  if (piece->flags & MEMORY && !piece->moved) {
    void *ours = (void *)(uintptr_t)piece->address, *theirs = (void *)(uintptr_t)piece->offset;
    memcpy(piece->flags & WRITE ? theirs : ours, piece->flags & WRITE ? ours : theirs, (size_t)piece->nbytes);
    piece->moved = piece->nbytes;
  }
  while (piece->moved < piece->nbytes) {
    char *at = (char *)(uintptr_t)piece->address + piece->moved;
    size_t rest = (size_t)(piece->nbytes - piece->moved);
    off_t offset = piece->offset + piece->moved;
    ssize_t done = piece->flags & WRITE ? pwrite((int)piece->fd, at, rest, offset)
                                        : pread((int)piece->fd, at, rest, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return SHORT;
    piece->moved += done;
    if (ends_early(piece)) return SHORT;
  }
  return 0;
}

/* A step of the file that is open as `*file`, or will be. */
static int64_t stepped(struct piece *piece, int *file) {
  const char *name = (const char *)(uintptr_t)piece->address;
  int at = (int)piece->fd, done;
  if (piece->flags & NOWHERE) return 0;
  do {
    if (piece->flags & OPEN) {
      done = *file = openat(at, name, (int)piece->offset, (mode_t)piece->nbytes);
    } else if (piece->flags & SYNC) {
      done = fsync(*file < 0 ? at : *file);
    } else if (piece->flags & RENAME) {
      done = renameat(at, name, at, (const char *)(uintptr_t)piece->base[0]);
    } else if (piece->flags & KEEP) {
      piece->moved = *file;
      *file = -1;
      done = 0;
    } else {
      done = close(*file); /* gone even where it reports an error */
      *file = -1;
      if (done < 0 && errno == EINTR) done = 0;
    }
  } while (done < 0 && errno == EINTR);
  return done < 0 ? errno : 0;
}

/* Work off `count` rows one after the other, until `*abort` is other than 0. What was opened is
 * closed all the same. */
void kv_transfer(struct piece *pieces, int64_t count, const int32_t *abort, const struct noise *noise) {
  int file = -1; /* of the object */
  for (int64_t i = 0; i < count; i++) {
    struct piece *piece = &pieces[i];
    int must = piece->flags & CLOSE && file >= 0;
    if (!must && (stopped(abort) || left_out(pieces, i))) {
      piece->error = stopped(abort) ? ABORTED : LEFT_OUT;
      continue;
    }
    if (file >= 0 && !(piece->flags & STEPS)) piece->fd = file;
    take(piece, noise);
    piece->began_ns = now_ns();
    int64_t error = piece->flags & STEPS ? stepped(piece, &file) : moved_all(piece);
    end(piece, error, now_ns(), noise);
  }
}

/* Wake up every `interval_ns` and note by how much that was too late, `count` times in all. Instants
 * that passed during one long delay count each with their own. The kernel may be late by the thread's
 * slack on purpose, 50 us, which no end of a transfer has to wait for: it is left out from now on. */
void kv_wake_up(int64_t interval_ns, int64_t count, int64_t *late_ns) {
  prctl(PR_SET_TIMERSLACK, 1);
  int64_t due_ns = now_ns() + interval_ns;
  for (int64_t i = 0; i < count;) {
    struct timespec until = {due_ns / 1000000000, due_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
    for (int64_t now = now_ns(); i < count && due_ns <= now; due_ns += interval_ns)
      late_ns[i++] = now - due_ns;
  }
}

/* Read small files one after the other, such as the kernel's, which give all in one call: each into
 * a place of `room` bytes. `paths` follow each other, each with its end. A length of -1: it cannot be
 * read. */
void kv_read_files(const char *paths, int64_t count, char *into, int64_t room, int64_t *lengths) {
  for (int64_t i = 0; i < count; i++, paths += strlen(paths) + 1, into += room) {
    int fd = open(paths, O_RDONLY | O_CLOEXEC);
    lengths[i] = fd < 0 ? -1 : read(fd, into, room);
    if (fd >= 0) close(fd);
  }
}

/* --- a crew -------------------------------------------------------------------------------- */

/* A table whose objects many threads work at. Its addresses are those of the first of `slots` places
 * for an object, `apart` bytes from each other: who works at it has one of them. */
struct job {
  struct piece *pieces;
  int64_t count, next;
  int64_t apart, slots, joined;
  int64_t at_work; /* threads that have one of its objects */
  const int32_t *abort;
  const struct noise *noise;
  struct job *after;
  pthread_cond_t ended;
};

/* Threads that help all callers, whoever came first. */
struct crew {
  pthread_mutex_t lock;
  pthread_cond_t wanted;
  struct job *first, **last; /* jobs that can do with one thread more */
  int closing, hands;
  pthread_t threads[];
};

static void unlist(struct crew *crew, struct job *job) {
  struct job **at = &crew->first;
  while (*at && *at != job) at = &(*at)->after;
  if (!*at) return;
  *at = job->after;
  if (crew->last == &job->after) crew->last = at;
}

/* With the lock: the next object of a job, and of how many pieces it is. */
static struct piece *next_of(struct crew *crew, struct job *job, int64_t *count) {
  struct piece *pieces = job->pieces + job->next;
  int64_t left = job->count - job->next;
  for (*count = 1; *count < left && pieces[*count].object == pieces->object;) ++*count;
  job->next += *count;
  if (job->next == job->count) unlist(crew, job);
  return pieces;
}

/* With the lock: work at objects of a job, in a slot of one's own, as long as it has one that nobody
 * works at. */
static void work_at(struct crew *crew, struct job *job) {
  const uint64_t beyond = (uint64_t)(job->apart * job->joined++);
  job->at_work++;
  if (job->joined == job->slots) unlist(crew, job);
  while (job->next < job->count) {
    int64_t count;
    struct piece *pieces = next_of(crew, job, &count);
    pthread_mutex_unlock(&crew->lock);
    for (int64_t i = 0; i < count; i++)
      if (!(pieces[i].flags & STEPS)) pieces[i].address += beyond;
    kv_transfer(pieces, count, job->abort, job->noise);
    pthread_mutex_lock(&crew->lock);
  }
  if (!--job->at_work) pthread_cond_signal(&job->ended);
}

static void *help(void *of) {
  struct crew *crew = of;
  prctl(PR_SET_NAME, "kv-transfer");
  pthread_mutex_lock(&crew->lock);
  while (!crew->closing)
    if (crew->first)
      work_at(crew, crew->first);
    else
      pthread_cond_wait(&crew->wanted, &crew->lock);
  pthread_mutex_unlock(&crew->lock);
  return NULL;
}

/* Its threads end when what they work at has ended; no call may come any more. */
void kv_crew_close(struct crew *crew) {
  pthread_mutex_lock(&crew->lock);
  crew->closing = 1;
  pthread_cond_broadcast(&crew->wanted);
  pthread_mutex_unlock(&crew->lock);
  for (int i = 0; i < crew->hands; i++) pthread_join(crew->threads[i], NULL);
  pthread_cond_destroy(&crew->wanted);
  pthread_mutex_destroy(&crew->lock);
  free(crew);
}

/* A crew of so many threads, which take no signals. Returns an errno. */
int kv_crew_open(int hands, struct crew **made) {
  struct crew *crew = calloc(1, sizeof *crew + (size_t)hands * sizeof crew->threads[0]);
  if (!crew) return ENOMEM;
  pthread_mutex_init(&crew->lock, NULL);
  pthread_cond_init(&crew->wanted, NULL);
  crew->last = &crew->first;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  while (!error && crew->hands < hands)
    if (!(error = pthread_create(&crew->threads[crew->hands], NULL, help, crew))) crew->hands++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    kv_crew_close(crew);
  else
    *made = crew;
  return error;
}

/* As `kv_transfer`, with the help of those of the crew who have nothing to do: `slots` threads at a time
 * at most, each in a place of its own, `apart` bytes from the next one's. */
void kv_transfer_by_crew(struct crew *crew, struct piece *pieces, int64_t count, int64_t apart, int64_t slots,
                         const int32_t *abort, const struct noise *noise) {
  struct job job = {pieces, count, 0, apart, slots, 0, 0, abort, noise, NULL, PTHREAD_COND_INITIALIZER};
  if (!count) return;
  pthread_mutex_lock(&crew->lock);
  *crew->last = &job;
  crew->last = &job.after;
  for (int64_t i = 1; i < count && i < slots && i <= crew->hands; i++) pthread_cond_signal(&crew->wanted);
  work_at(crew, &job);
  while (job.at_work) pthread_cond_wait(&job.ended, &crew->lock);
  pthread_mutex_unlock(&crew->lock);
  pthread_cond_destroy(&job.ended);
}

/* --- io_uring ------------------------------------------------------------------------------ */

struct ring {
  int fd;
  unsigned depth;
  unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
  unsigned queued; /* entries that the kernel has not been told of */
  struct io_uring_sqe *sqes;
  struct io_uring_cqe *cqes;
  void *queues;
  size_t queues_bytes, sqes_bytes;
  int ended; /* a pipe whose other end the kernel's part of the ring has, and closes with itself */
  struct iovec held[MOST_HELD]; /* memory whose pages the kernel's part of the ring has */
  unsigned parts;
};

/* Take the ring from the process. Its requests may go on. */
static void let_go(struct ring *ring) {
  if (ring->sqes) munmap(ring->sqes, ring->sqes_bytes);
  if (ring->queues) munmap(ring->queues, ring->queues_bytes);
  if (ring->fd >= 0) close(ring->fd);
  ring->sqes = NULL;
  ring->queues = NULL;
  ring->fd = -1;
}

/* As `let_go`, and wait until the last of its requests has ended or was cancelled. */
static void give_up(struct ring *ring) {
  char none;
  let_go(ring);
  while (read(ring->ended, &none, 1) < 0 && errno == EINTR) continue;
}

void kv_ring_close(struct ring *ring) {
  let_go(ring);
  if (ring->ended >= 0) close(ring->ended);
  free(ring);
}

/* Have the kernel's part of the ring hold one end of a pipe: it closes it when it is gone itself, which
 * is after its last request, however the process has lost it. */
static int mark_end(struct ring *ring) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return errno;
  ring->ended = ends[0];
  long failed = syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, &ends[1], 1);
  int error = failed < 0 ? errno : 0;
  close(ends[1]);
  return error;
}

static int ring_maps(struct ring *ring, const struct io_uring_params *params) {
  if (!(params->features & IORING_FEAT_SINGLE_MMAP)) return ENOSYS; /* Linux 5.4 */
  size_t sq = params->sq_off.array + params->sq_entries * sizeof(unsigned);
  size_t cq = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
  ring->queues_bytes = sq > cq ? sq : cq;
  ring->sqes_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
  int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
  char *queues = mmap(NULL, ring->queues_bytes, access, flags, ring->fd, IORING_OFF_SQ_RING);
  if (queues == MAP_FAILED) return errno;
  ring->queues = queues;
  void *sqes = mmap(NULL, ring->sqes_bytes, access, flags, ring->fd, IORING_OFF_SQES);
  if (sqes == MAP_FAILED) return errno;
  ring->sqes = sqes;
  ring->sq_tail = (unsigned *)(queues + params->sq_off.tail);
  ring->sq_mask = (unsigned *)(queues + params->sq_off.ring_mask);
  ring->sq_array = (unsigned *)(queues + params->sq_off.array);
  ring->cq_head = (unsigned *)(queues + params->cq_off.head);
  ring->cq_tail = (unsigned *)(queues + params->cq_off.tail);
  ring->cq_mask = (unsigned *)(queues + params->cq_off.ring_mask);
  ring->cqes = (struct io_uring_cqe *)(queues + params->cq_off.cqes);
  return 0;
}

/* A ring of `depth` requests for the calling thread. Returns an errno. */
int kv_ring_open(unsigned depth, struct ring **made) {
  unsigned tried[] = {
#ifdef IORING_SETUP_DEFER_TASKRUN
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, /* Linux 6.1 */
#endif
      0};
  struct io_uring_params params;
  struct ring *ring = calloc(1, sizeof *ring);
  if (!ring) return ENOMEM;
  ring->fd = ring->ended = -1;
  for (unsigned i = 0; i < sizeof tried / sizeof *tried && ring->fd < 0; i++) {
    memset(&params, 0, sizeof params);
    params.flags = tried[i];
    ring->fd = (int)syscall(SYS_io_uring_setup, depth, &params);
  }
  int error = ring->fd < 0 ? errno : ring_maps(ring, &params);
  if (!error) error = mark_end(ring);
  if (error) {
    kv_ring_close(ring);
    return error;
  }
  ring->depth = depth;
  *made = ring;
  return 0;
}

/* Have the kernel hold the pages of some memory as long as there is the ring, instead of looking for those
 * of each transfer. Returns an errno; the ring serves as well without. */
int kv_ring_hold(struct ring *ring, const struct iovec *memory, unsigned parts) {
  if (parts > MOST_HELD) return E2BIG;
  if (syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, memory, parts) < 0) return errno;
  memcpy(ring->held, memory, parts * sizeof *memory);
  ring->parts = parts;
  return 0;
}

/* The part of the memory that is held in which a request has all its bytes; as many as there are if none. */
static unsigned part_of(const struct ring *ring, const struct io_uring_sqe *sqe) {
  unsigned part = 0;
  for (; part < ring->parts; part++) {
    uint64_t begin = (uint64_t)(uintptr_t)ring->held[part].iov_base, length = ring->held[part].iov_len;
    if (sqe->addr >= begin && sqe->addr - begin <= length && sqe->len <= length - (sqe->addr - begin)) break;
  }
  return part;
}

static void queue(struct ring *ring, const struct piece *piece, int64_t number) {
  unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
  struct io_uring_sqe *sqe = &ring->sqes[index];
  memset(sqe, 0, sizeof *sqe);
  sqe->opcode = piece->flags & SYNC ? IORING_OP_FSYNC : piece->flags & WRITE ? IORING_OP_WRITE : IORING_OP_READ;
  if (piece->flags & NOWHERE) sqe->opcode = IORING_OP_NOP;
  sqe->fd = (int)piece->fd;
  sqe->addr = piece->flags & SYNC ? 0 : piece->address + (uint64_t)piece->moved;
  sqe->len = (unsigned)(piece->nbytes - piece->moved);
  sqe->off = (uint64_t)(piece->offset + piece->moved);
  sqe->user_data = (uint64_t)number;
  unsigned part = part_of(ring, sqe);
  if (part < ring->parts && (sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_WRITE)) {
    sqe->opcode = sqe->opcode == IORING_OP_READ ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
    sqe->buf_index = (uint16_t)part;
  }
  ring->sq_array[index] = index;
  __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
  ring->queued++;
}

/* Tell the kernel of what is queued, and wait until one request has ended. Returns an errno. */
static int enter(struct ring *ring) {
  long told = syscall(SYS_io_uring_enter, ring->fd, ring->queued, 1, IORING_ENTER_GETEVENTS, NULL, 0);
  if (told >= 0) ring->queued -= (unsigned)told;
  /* EINTR: a signal; EAGAIN, EBUSY: the kernel wants its completions taken first. */
  return told >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY ? 0 : errno;
}

/* As `kv_transfer`, `depth` rows at a time, or as many as the ring is deep: all of a table but those that
 * sync, or just those. */
static int many(struct ring *ring, struct piece *pieces, int64_t count, int64_t depth, int64_t syncs,
                const int32_t *abort, const struct noise *noise) {
  int64_t next = 0, in_flight = 0;
  while (next < count || in_flight) {
    int64_t first = next;
    for (; next < count && in_flight < depth; next++) {
      struct piece *piece = &pieces[next];
      if ((piece->flags & SYNC) != syncs) continue;
      if (stopped(abort) || left_out(pieces, next)) {
        piece->error = stopped(abort) ? ABORTED : LEFT_OUT;
        continue;
      }
      take(piece, noise);
      queue(ring, piece, next);
      in_flight++;
    }
    int64_t began_ns = now_ns();
    for (; first < next; first++)
      if ((pieces[first].flags & SYNC) == syncs && !pieces[first].error) pieces[first].began_ns = began_ns;
    if (!in_flight) continue;
    int error = enter(ring);
    if (error) return error;
    unsigned head = *ring->cq_head, tail = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE);
    int64_t ended_ns = now_ns();
    while (head != tail) {
      const struct io_uring_cqe *cqe = &ring->cqes[head & *ring->cq_mask];
      struct piece *piece = &pieces[cqe->user_data];
      int64_t number = (int64_t)cqe->user_data, done = cqe->res;
      if (piece->flags & NOWHERE && !done) done = piece->nbytes;
      __atomic_store_n(ring->cq_head, ++head, __ATOMIC_RELEASE);
      if (done > 0) piece->moved += done;
      int rest = done > 0 && piece->moved < piece->nbytes;
      if (rest && ends_early(piece)) done = rest = 0;
      if (done == -EINTR || done == -EAGAIN || rest) {
        queue(ring, piece, number); /* what is left */
        continue;
      }
      in_flight--;
      end(piece, done < 0 ? -done : done == 0 && piece->nbytes ? SHORT : 0, ended_ns, noise);
    }
  }
  return 0;
}

/* As `kv_transfer`, many rows at a time; files are synced, all at the same time, when everything is written.
 * Returns an errno if the ring itself fails, which may not be used again then; what the kernel had of it has
 * ended all the same, so that memory is the caller's. */
int kv_transfer_many(struct ring *ring, struct piece *pieces, int64_t count, int64_t depth,
                     const int32_t *abort, const struct noise *noise) {
  if (depth > (int64_t)ring->depth) depth = ring->depth;
  int error = many(ring, pieces, count, depth, 0, abort, noise);
  if (!error) error = many(ring, pieces, count, depth, SYNC, abort, noise);
  if (error) give_up(ring);
  return error;
}
