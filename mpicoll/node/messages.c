/* Messages between two ranks of one node. See messages.h.
 *
 * From each rank to each, itself too, there is a ring of records. A short message is one record. A long one is
 * announced, by a record; a record in the ring of the other direction grants it, when a receive takes it; and then its
 * pieces follow. So messages of a sender lie in its ring in their order, and only short ones take memory before a
 * receive asks for them. Pieces come in the order of the grants.
 *
 * A piece is copied twice. An array in memory that ranks share is copied once: the receiver maps its file. Others
 * may be read out of the sender's memory, if the system permits that, which costs more for each page. That is better
 * where the sender computes, where both ranks are busy with messages, where the arrays do not stay in caches, and where
 * ranks take turns on cores, since each turn of a ring costs a change of them. The receiver grants no bytes then. A
 * change is also what a grant costs. So where ranks take turns, longer messages count as short.
 *
 * Where the sender of a very long message waits, and the receiver sends it none, both copy: the receiver tells it where
 * the message is to go, reads the first half, and hears that the second one is written. Then it grants no bytes, or
 * all of them if one half has failed. The sender's array stays until then.
 *
 * The one that waits for a record looks at the place where it will be, so that a short message costs the transfer of
 * one cache line: the first word of a record is written last, and before that, the first word of the record that will
 * follow it is cleared. `sent` is written after it, for a thread that may look at atomics only: see has_come().
 * The receiver takes the first line away with each look. So a sender writes the lines behind it first, and clears the
 * place of the next record but one, if that is as long as this one, when this one has left.
 *
 * No wake-up is lost: who writes `sent` or `taken` looks for sleepers afterwards, as waiting.c wants it, and changes
 * their word only if there are any. A sleeper counts itself, reads the word, and then looks at `sent` and `taken`. If
 * the writer has not seen it, it sees what has been written. Otherwise the word changes after the write. A sleeper that
 * has read the new word sees the write; with the old one the system lets nobody sleep, or the writer wakes it.
 * (tests/pure/node/test_wake_ups.py walks through all this.)
 */
#include "messages.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_RING (128 << 10)
#define SHORTEST_RING (8 << 10)
#define ALL_RINGS (512 << 10) /* bytes of a rank's rings, with more ranks than 4, unless that is too short */
#define LONGEST_EAGER (8 << 10) /* where ranks have a core each */
#define LEAST_READ 64 /* rings of a message that is read out of the sender's memory in any case */
#define PUT_OFF 200   /* looks, before a message is read that its sender could send if it came */
#ifndef LEAST_HALVED
#define LEAST_HALVED (4 << 20) /* bytes of a message of which both ranks copy a half */
#endif
#define MOST_AT_ONCE 32     /* records of one source, before it is others' turn */
#define ALL_AFTER 64        /* looks at one source, before one at all */

typedef enum { NO_RECORD, EAGER, LONG, GRANT, PIECE, HALF, WRITTEN, WRAP } What;

enum { NOT_WRITTEN = 1, ALL_WRITTEN };

/* A record begins at a multiple of LINE. The bytes of a message follow it; those of a piece, at the next line. */
typedef struct {
    _Atomic uint32_t what;
    int32_t tag;
    uint64_t nbytes; /* of the whole message; of a piece; or that a receive wants of a long message */
    uint64_t number; /* of a long message that is granted; of one that is announced, its address, or 0 */
} Record;

typedef struct {
    Record record;
    uint64_t address; /* where the receiver wants the whole message */
} Half;

typedef struct {
    Record record;
    Home home;
} Announcement;

static size_t rounded(size_t nbytes, size_t step) { return (nbytes + step - 1) / step * step; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t ring_size(int size, int crowded) {
    size_t most = ALL_RINGS / (size_t)size, ring = SHORTEST_RING;
    while (2 * ring <= most && ring < LONGEST_RING) ring *= 2;
    return crowded ? 2 * ring : ring;
}
static size_t head(int size) { return rounded(APART + (size_t)size * sizeof(Ends), 4096); }
size_t messages_block_size(int size, int crowded) { return head(size) + (size_t)size * ring_size(size, crowded); }

static void peer_begin(Peer *p, const Messages *m, char *mine, char *its, int rank) {
    size_t from = (size_t)rank, to = (size_t)m->rank, at = head(m->size);
    p->bed = (Bed){(_Atomic uint32_t *)its, (_Atomic uint32_t *)its + 1};
    p->self = (const Self *)(its + sizeof(uint64_t)), p->readable = -1;
    p->attends = (_Atomic int *)(its + APART / 2), p->core = p->attends + 1;
    p->in = (Ends *)(mine + APART) + from, p->from = mine + at + from * m->ring;
    p->out = (Ends *)(its + APART) + to, p->to = its + at + to * m->ring;
    p->free_until = m->ring;
    p->end = &p->first;
}

int messages_begin(Messages *m, int rank, int size, char *const *blocks, int crowded, Host host) {
    *m = (Messages){.rank = rank, .size = size, .ring = ring_size(size, crowded), .crowded = crowded};
    m->eager = crowded ? m->ring / 8 * 3 : least(m->ring / 8, LONGEST_EAGER);
    m->piece = m->ring / 8 - LINE;
    m->peers = calloc((size_t)size, sizeof *m->peers);
    if (!m->peers) return OUT_OF_MEMORY;
    introduce((Self *)(blocks[rank] + sizeof(uint64_t)));
    for (int r = 0; r < size; r++) peer_begin(&m->peers[r], m, blocks[rank], blocks[r], r);
    waiter_begin(&m->waiter, crowded, host);
    return 0;
}

void messages_end(Messages *m) {
    for (int r = 0; r < m->size && m->peers; r++)
        for (Passed *passed = m->peers[r].first, *next; passed; passed = next) next = passed->next, free(passed);
    free(m->peers);
    m->peers = NULL;
}

static void append(Queue *q, Transfer *t) {
    t->next = NULL, t->before = q->last;
    if (q->last) q->last->next = t;
    else q->first = t;
    q->last = t;
}

static void take_out(Queue *q, Transfer *t) {
    if (t->before) t->before->next = t->next;
    else q->first = t->next;
    if (t->next) t->next->before = t->before;
    else q->last = t->before;
}

static void rouse(Bed bed) {
    if (!atomic_load_explicit(bed.sleepers, memory_order_seq_cst)) return;
    atomic_fetch_add_explicit(bed.word, 1, memory_order_seq_cst);
    wake(bed);
}

/* One thread at a time writes it. */
static void count_open(Messages *m, int more) {
    size_t open = atomic_load_explicit(&m->open, memory_order_relaxed);
    atomic_store_explicit(&m->open, open + (size_t)more, memory_order_relaxed);
}
static void count_unread(Peer *p, int more) {
    int unread = atomic_load_explicit(&p->unread, memory_order_relaxed);
    atomic_store_explicit(&p->unread, unread + more, memory_order_relaxed);
}
int has_open_transfers(const Messages *m) { return atomic_load_explicit(&m->open, memory_order_relaxed) != 0; }

static int is_long_send(const Messages *m, const Transfer *t) { return !t->receives && t->memory.nbytes > m->eager; }

/* The caller keeps a transfer until it is complete, so this comes last. Only threads of this rank look at it. */
static void complete(Messages *m, Transfer *t) {
    count_open(m, -1);
    m->longs -= is_long_send(m, t);
    if (!m->asleep) {
        atomic_store_explicit(&t->complete, 1, memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&t->complete, 1, memory_order_seq_cst);
    rouse(m->peers[m->rank].bed);
}

/* Records that leave. */

static Record *record_at(const Messages *m, char *ring, uint64_t position) {
    return (Record *)(ring + (position & (m->ring - 1)));
}

/* No record begins there yet. Only its sender writes to a ring, where its receiver has read all. */
static void clear(Messages *m, Peer *p, uint64_t position) {
    atomic_store_explicit(&record_at(m, p->to, position)->what, NO_RECORD, memory_order_relaxed);
    p->cleared = position;
}

static void publish(Messages *m, Peer *p, Record *record, What what, size_t nbytes) {
    p->sent += nbytes;
    if (p->cleared != p->sent) clear(m, p, p->sent);
    atomic_store_explicit(&record->what, what, memory_order_release);
    atomic_store_explicit(&p->out->sent, p->sent, memory_order_seq_cst);
    if (p->sent + nbytes + LINE <= p->free_until) clear(m, p, p->sent + nbytes);
    m->moves++;
    rouse(p->bed);
}

/* Room for a record and for the first line of the next one, or NULL. */
static Record *reserve(Messages *m, Peer *p, size_t nbytes) {
    size_t left = m->ring - (p->sent & (m->ring - 1)), skipped = left < nbytes ? left : 0;
    uint64_t end = p->sent + skipped + nbytes + LINE;
    if (end > p->free_until)
        p->free_until = atomic_load_explicit(&p->out->taken, memory_order_seq_cst) + m->ring;
    if (end > p->free_until) {
        atomic_store_explicit(&p->needs, end - m->ring, memory_order_relaxed);
        return NULL;
    }
    if (skipped) publish(m, p, record_at(m, p->to, p->sent), WRAP, skipped);
    return record_at(m, p->to, p->sent);
}

#define PART (64 << 10) /* bytes that are read at once for an array with gaps */

static int may_read(Peer *p) {
    if (p->readable < 0) p->readable = is_readable(p->self);
    return p->readable;
}

/* Pieces take two copies, one on each core. They are faster while only one of the two has a long message to send.
 * Where both have, they are far slower if the cores lie far apart, but for the shortest ones. */
static int is_both_ways(const Peer *p) { return p->unsent.first || p->announced.first || p->flowing.first; }
static int attends(const Peer *p) { return atomic_load_explicit(p->attends, memory_order_relaxed); }

static int is_better_read(const Messages *m, const Peer *p, const Transfer *t) {
    size_t least = is_both_ways(p) ? m->ring / 4 + 1 : LEAST_READ * m->ring;
    return t->mapped || m->crowded || t->put_off >= PUT_OFF || t->wanted >= least;
}

/* A sender that waits for nothing else copies a half itself, on its own core. */
static int is_better_halved(const Messages *m, Peer *p, const Transfer *t) {
    int is_alone = !m->crowded && !is_both_ways(p) && attends(p); /* a message to this rank itself goes both ways */
    return t->wanted >= LEAST_HALVED && !t->memory.dims && is_alone && may_read(p);
}

static size_t half_of(size_t nbytes) { return rounded(nbytes / 2, 4096); }

/* A sender that computes would send the pieces late. But it may be about to wait: a receive gives it a moment. */
static int is_put_off(const Messages *m, const Peer *p, Transfer *t) {
    if (t->is_halved) return 1;
    if (!t->address || is_better_read(m, p, t)) return 0;
    return !attends(p) && ++t->put_off < PUT_OFF;
}

/* Read the first bytes of a long message out of its sender's memory. Returns 0 if not all could be read. */
static int read_message(const Peer *p, Transfer *t, uint64_t address, size_t nbytes) {
    if (t->mapped) return scatter_bytes(&t->memory, 0, nbytes, t->mapped), 1;
    if (!t->memory.dims) return !read_memory(p->self, address, t->memory.address, nbytes);
    char *part = malloc(PART);
    size_t done = 0;
    for (size_t now; part && done < nbytes; done += now) {
        now = least(PART, nbytes - done);
        if (read_memory(p->self, address + done, part, now)) break;
        scatter_bytes(&t->memory, done, now, part);
    }
    free(part);
    return done == nbytes;
}

/* The sender writes the second half while this rank reads the first one. Then no bytes are granted, if all are here. */
static int send_half(Messages *m, Peer *p, Transfer *t, Half *half, uint64_t address) {
    half->address = (uint64_t)(uintptr_t)t->memory.address;
    publish(m, p, &half->record, HALF, LINE);
    t->is_read = read_message(p, t, address, half_of(t->wanted));
    t->is_halved = 1;
    return 1;
}

static int send_grant(Messages *m, Peer *p, Transfer *t) {
    Record *record = reserve(m, p, LINE);
    if (!record) return 0;
    record->nbytes = t->wanted, record->number = t->number;
    if (t->address) {
        uint64_t address = t->address;
        t->address = 0;
        count_unread(p, -1);
        if (is_better_halved(m, p, t)) return send_half(m, p, t, (Half *)record, address);
        if (is_better_read(m, p, t) && read_message(p, t, address, t->wanted)) record->nbytes = t->wanted = 0;
    }
    publish(m, p, record, GRANT, LINE);
    p->ungranted = t->next;
    if (!t->wanted) { /* no pieces follow */
        take_out(&p->granted, t);
        complete(m, t);
    }
    return 1;
}

static int send_message(Messages *m, Peer *p, Transfer *t) {
    int is_short = t->memory.nbytes <= m->eager;
    size_t nbytes = is_short ? rounded(sizeof(Record) + t->memory.nbytes, LINE) : LINE;
    Record *record = reserve(m, p, nbytes);
    if (!record) return 0;
    if (is_short) {
        size_t here = least(t->memory.nbytes, LINE - sizeof *record);
        gather_bytes(&t->memory, here, t->memory.nbytes - here, (char *)record + LINE);
        gather_bytes(&t->memory, 0, here, (char *)(record + 1));
    } else {
        ((Announcement *)record)->home = t->home;
    }
    record->tag = t->tag, record->nbytes = t->memory.nbytes;
    record->number = t->memory.dims ? 0 : (uint64_t)(uintptr_t)t->memory.address;
    publish(m, p, record, is_short ? EAGER : LONG, nbytes);
    take_out(&p->unsent, t);
    if (is_short) {
        complete(m, t);
    } else {
        t->number = p->announced_ever++;
        append(&p->announced, t);
    }
    return 1;
}

static int send_piece(Messages *m, Peer *p, Transfer *t) {
    size_t now = least(m->piece, t->wanted - t->moved), nbytes = LINE + rounded(now, LINE);
    Record *record = reserve(m, p, nbytes);
    if (!record) return 0;
    gather_bytes(&t->memory, t->moved, now, (char *)record + LINE);
    record->nbytes = now;
    publish(m, p, record, PIECE, nbytes);
    t->moved += now;
    if (t->moved == t->wanted) {
        take_out(&p->flowing, t);
        complete(m, t);
    }
    return 1;
}

static int send_written(Messages *m, Peer *p) {
    Record *record = reserve(m, p, LINE);
    if (!record) return 0;
    record->nbytes = p->writes == ALL_WRITTEN;
    p->writes = 0;
    publish(m, p, record, WRITTEN, LINE);
    return 1;
}

/* Send what is queued, until the ring is full. Short messages do not wait behind the pieces of long ones. */
static void push(Messages *m, Peer *p) {
    if (p->writes && !send_written(m, p)) return;
    while (p->ungranted && !(m->starts && p->ungranted->address) && !is_put_off(m, p, p->ungranted))
        if (!send_grant(m, p, p->ungranted)) return;
    while (p->unsent.first)
        if (!send_message(m, p, p->unsent.first)) return;
    while (p->flowing.first)
        if (!send_piece(m, p, p->flowing.first)) return;
    atomic_store_explicit(&p->needs, 0, memory_order_relaxed);
}

/* Records that come. */

/* The receive takes this message. `bytes` are NULL where it is long. */
static void accept(Messages *m, Transfer *t, Envelope message, const char *bytes, const Source *where) {
    Peer *p = &m->peers[message.source];
    t->message = message;
    t->wanted = least(message.nbytes, t->memory.nbytes);
    if (bytes) {
        scatter_bytes(&t->memory, 0, t->wanted, bytes);
        complete(m, t);
        return;
    }
    t->number = where->number;
    const char *home = where->home.file && t->wanted ? map_home(p->self, &where->home) : NULL;
    if (home) t->mapped = home + (where->address - where->home.address);
    else if (message.source == m->rank) t->mapped = (const char *)(uintptr_t)where->address;
    if (t->mapped || (where->address && may_read(p))) {
        t->address = where->address;
        count_unread(p, 1);
    }
    append(&p->granted, t);
    if (!p->ungranted) p->ungranted = t;
}

static int pass_over(Messages *m, Envelope message, const char *bytes, const Source *where) {
    Peer *p = &m->peers[message.source];
    size_t kept = bytes ? message.nbytes : 0;
    Passed *passed = malloc(sizeof *passed + kept);
    if (!passed) return OUT_OF_MEMORY;
    uint64_t arrival = atomic_load_explicit(&m->passed, memory_order_relaxed);
    *passed = (Passed){.message = message, .is_long = !bytes, .arrival = arrival};
    if (!bytes) passed->where = *where;
    if (kept) memcpy(passed->bytes, bytes, kept);
    *p->end = passed, p->end = &passed->next;
    m->lying++;
    atomic_store_explicit(&m->passed, arrival + 1, memory_order_seq_cst);
    if (m->asleep) rouse(m->peers[m->rank].bed);
    return 0;
}

/* A tag below ANY is the library's own: only who asks for it gets it. No rank is below 0. */
static int matches(int wanted, int given) { return wanted == given || (wanted == ANY && given >= 0); }

static int take_message(Messages *m, int source, const Record *record, int is_long) {
    Peer *p = &m->peers[source];
    Envelope message = {source, record->tag, record->nbytes};
    const char *bytes = is_long ? NULL : (const char *)(record + 1);
    Source where;
    if (is_long) where = (Source){p->heard_ever, record->number, ((const Announcement *)record)->home};
    for (Transfer *t = m->posted.first; t; t = t->next) {
        if (!matches(t->peer, source) || !matches(t->tag, message.tag)) continue;
        take_out(&m->posted, t);
        t->is_posted = 0;
        accept(m, t, message, bytes, &where);
        p->heard_ever += (uint64_t)is_long;
        return 0;
    }
    int code = pass_over(m, message, bytes, &where);
    if (!code) p->heard_ever += (uint64_t)is_long;
    return code;
}

static Transfer *announced_as(const Peer *p, uint64_t number) {
    Transfer *t = p->announced.first;
    while (t->number != number) t = t->next;
    return t;
}

static void take_half(Peer *p, const Record *record) {
    size_t half = half_of(record->nbytes);
    const char *from = announced_as(p, record->number)->memory.address + half;
    uint64_t to = ((const Half *)record)->address + half;
    p->writes = may_read(p) && !write_memory(p->self, to, from, record->nbytes - half) ? ALL_WRITTEN : NOT_WRITTEN;
}

static void take_written(Peer *p, const Record *record) {
    Transfer *t = p->ungranted;
    if (record->nbytes && t->is_read) t->wanted = 0;
    t->is_halved = 0;
}

static void take_grant(Messages *m, Peer *p, const Record *record) {
    Transfer *t = announced_as(p, record->number);
    take_out(&p->announced, t);
    t->wanted = record->nbytes;
    if (t->wanted) append(&p->flowing, t);
    else complete(m, t);
}

static void take_piece(Messages *m, Peer *p, const Record *record) {
    Transfer *t = p->granted.first;
    scatter_bytes(&t->memory, t->moved, record->nbytes, (const char *)record + LINE);
    t->moved += record->nbytes;
    if (t->moved < t->wanted) return;
    take_out(&p->granted, t);
    complete(m, t);
}

/* The sender reads how far the ring is read, if that is much further than it knows. What it does not know is less than
 * any record has to wait for: the longest one takes three eighths of the ring, and as much may be skipped. */
static void say_taken(Messages *m, Peer *p, uint64_t taken) {
    atomic_store_explicit(&p->taken, taken, memory_order_relaxed);
    if (taken - p->published < m->ring / 8) return;
    p->published = taken;
    atomic_store_explicit(&p->in->taken, taken, memory_order_seq_cst);
    rouse(p->bed);
}

static int take_record(Messages *m, int source, const Record *record, What what, size_t *nbytes) {
    Peer *p = &m->peers[source];
    int code = 0;
    *nbytes = LINE;
    switch (what) {
    case EAGER:
        *nbytes = rounded(sizeof *record + record->nbytes, LINE);
        code = take_message(m, source, record, 0);
        break;
    case LONG: code = take_message(m, source, record, 1); break;
    case GRANT: take_grant(m, p, record); break;
    case HALF: take_half(p, record); break;
    case WRITTEN: take_written(p, record); break;
    case PIECE:
        *nbytes = LINE + rounded(record->nbytes, LINE);
        take_piece(m, p, record);
        break;
    default: *nbytes = m->ring - (size_t)((const char *)record - p->from);
    }
    return code;
}

/* Take what has come from there, and send what can go there. */
static int look_at(Messages *m, int source) {
    Peer *p = &m->peers[source];
    uint64_t taken = atomic_load_explicit(&p->taken, memory_order_relaxed);
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        const Record *record = record_at(m, p->from, taken);
        __builtin_prefetch((const char *)record + LINE);
        What what = atomic_load_explicit(&record->what, memory_order_acquire);
        if (what == NO_RECORD) break;
        size_t nbytes;
        int code = take_record(m, source, record, what, &nbytes);
        if (code) return code;
        let_go((const char *)record, nbytes);
        taken += nbytes;
        say_taken(m, p, taken);
        m->moves++;
    }
    push(m, p);
    return 0;
}

int move_messages(Messages *m) {
    int code = 0, source = m->turn;
    for (int i = 0; i < m->size && !code; i++) {
        code = look_at(m, source);
        source = source + 1 < m->size ? source + 1 : 0;
    }
    m->turn = m->turn + 1 < m->size ? m->turn + 1 : 0;
    return code;
}

/* What the host's program calls. */

/* The link to the first message that such a receive takes: of those of any source, the one that came first. */
static Passed **find_passed(Messages *m, int source, int tag) {
    Passed **best = NULL;
    if (!m->lying) return NULL;
    for (int r = source == ANY ? 0 : source; r < (source == ANY ? m->size : source + 1); r++) {
        Passed **link = &m->peers[r].first;
        while (*link && !matches(tag, (*link)->message.tag)) link = &(*link)->next;
        if (*link && (!best || (*link)->arrival < (*best)->arrival)) best = link;
    }
    return best;
}

static void take_passed(Messages *m, Transfer *t, Passed **link) {
    Passed *passed = *link;
    Peer *p = &m->peers[passed->message.source];
    *link = passed->next;
    if (!passed->next) p->end = link;
    m->lying--;
    accept(m, t, passed->message, passed->is_long ? NULL : passed->bytes, &passed->where);
    free(passed);
    push(m, p);
}

static int start(Messages *m, Transfer *t) {
    count_open(m, 1);
    t->moved = 0, t->is_posted = 0, t->address = 0, t->mapped = NULL, t->put_off = 0, t->is_halved = 0;
    m->longs += is_long_send(m, t);
    atomic_store_explicit(&t->complete, 0, memory_order_relaxed);
    if (!t->receives) {
        append(&m->peers[t->peer].unsent, t);
        push(m, &m->peers[t->peer]);
        return 0;
    }
    Passed **link = find_passed(m, t->peer, t->tag);
    if (link) {
        take_passed(m, t, link);
        return 0;
    }
    t->is_posted = 1;
    append(&m->posted, t);
    return t->peer == ANY ? move_messages(m) : look_at(m, t->peer);
}

/* No order is needed: a receiver that sees an old value takes the slower way. */
static void attend(Messages *m, int more) {
    m->attending += more;
    atomic_store_explicit(m->peers[m->rank].attends, m->attending, memory_order_relaxed);
}

/* What takes long is left to those that wait: the caller may have more to start, for which others wait. */
int start_transfer(Messages *m, Transfer *t) {
    m->starts = 1;
    int code = start(m, t);
    m->starts = 0;
    return code;
}

int cancel_receive(Messages *m, Transfer *t) {
    if (!t->is_posted) return 0;
    count_open(m, -1);
    take_out(&m->posted, t);
    t->is_posted = 0;
    return 1;
}

/* What a thread waits for: one of the transfers, or else a message that no receive has asked for. */
typedef struct {
    Messages *m;
    Transfer *const *transfers;
    int count, source, tag;
    uint64_t passed;
    int is_brief; /* no sleep */
} Awaited;

static int is_complete(const Awaited *a) {
    for (int i = 0; i < a->count; i++)
        if (atomic_load_explicit(&a->transfers[i]->complete, memory_order_seq_cst)) return 1;
    return 0;
}

int something_has_come(const Messages *m) {
    for (int r = 0; r < m->size; r++) {
        const Peer *p = &m->peers[r];
        uint64_t taken = atomic_load_explicit(&p->taken, memory_order_relaxed);
        if (atomic_load_explicit(&p->in->sent, memory_order_seq_cst) > taken) return 1;
        uint64_t needs = atomic_load_explicit(&p->needs, memory_order_relaxed);
        if (!needs && atomic_load_explicit(&p->unread, memory_order_relaxed)) return 1;
        if (needs && atomic_load_explicit(&p->out->taken, memory_order_seq_cst) >= needs) return 1;
    }
    return 0;
}

/* Meanwhile other threads use all else. If they change what this one looks at, they wake it, or it looks in vain. */
static int has_come(const void *of) {
    const Awaited *a = of;
    if (is_complete(a)) return 1;
    if (!a->count && atomic_load_explicit(&a->m->passed, memory_order_seq_cst) != a->passed) return 1;
    return something_has_come(a->m);
}

static int is_there(Awaited *a) {
    if (a->count) return is_complete(a);
    a->passed = atomic_load_explicit(&a->m->passed, memory_order_relaxed);
    return find_passed(a->m, a->source, a->tag) != NULL;
}

static int look(Messages *m, const Awaited *a) {
    return a->source == ANY || ++m->looks % ALL_AFTER == 0 ? move_messages(m) : look_at(m, a->source);
}

/* Other threads wait with what this one has learned, but not meanwhile. */
static int sleep_until(Messages *m, const Awaited *a) {
    Waiter waiter = m->waiter;
    m->asleep++;
    int code = wait_long(&waiter, m->peers[m->rank].bed, has_come, a);
    m->asleep--;
    m->waiter = waiter;
    return code ? code : move_messages(m);
}

/* A message of this rank itself comes from another thread, which waits for Python's lock. Where ranks take turns on
 * cores, one that runs on this rank's own core sends nothing while this one looks. No order is needed: who sees an old
 * core looks too often, or too seldom. */
static int looks_for(const Messages *m, int source) {
    if (source == m->rank || m->size == 1) return 1;
    if (!m->crowded) return m->waiter.looks;
    int here = core_of_this();
    _Atomic int *said = m->peers[m->rank].core;
    if (atomic_load_explicit(said, memory_order_relaxed) != here)
        atomic_store_explicit(said, here, memory_order_relaxed);
    int is_behind = source != ANY && here && atomic_load_explicit(m->peers[source].core, memory_order_relaxed) == here;
    return is_behind ? 1 : m->waiter.looks;
}

static int wait_until(Awaited *a) {
    Messages *m = a->m;
    int code = 0, attends = m->longs > 0, looks = looks_for(m, a->source);
    if (attends) attend(m, 1);
    while (!code && !is_there(a)) {
        uint64_t moves = m->moves;
        for (int i = 0; i < looks; i++) {
            code = look(m, a);
            if (code || m->moves != moves) break;
            relax();
        }
        if (!code && m->moves == moves && a->is_brief) break;
        if (!code && m->moves == moves) code = sleep_until(m, a);
    }
    if (attends) attend(m, -1);
    return code;
}

int wait_for_any(Messages *m, Transfer *const *transfers, int count) {
    return wait_until(&(Awaited){m, transfers, count, count == 1 ? transfers[0]->peer : ANY, ANY, 0, 0});
}

int wait_for_transfer(Messages *m, Transfer *t) { return wait_for_any(m, &t, 1); }

int carry_transfer(Messages *m, Transfer *t) {
    int attends = is_long_send(m, t);
    if (attends) attend(m, 1);
    int code = start_transfer(m, t);
    if (!code) code = wait_for_transfer(m, t);
    if (attends) attend(m, -1);
    return code;
}

int look_for_transfer(Messages *m, Transfer *t) { return wait_until(&(Awaited){m, &t, 1, t->peer, ANY, 0, 1}); }

int probe_message(Messages *m, int source, int tag, Envelope *message, int *found) {
    int code = move_messages(m);
    Passed **link = find_passed(m, source, tag);
    *found = link != NULL;
    if (link) *message = (*link)->message;
    return code;
}

int wait_for_message(Messages *m, int source, int tag, Envelope *message) {
    int code = wait_until(&(Awaited){.m = m, .source = source, .tag = tag});
    if (!code) *message = (*find_passed(m, source, tag))->message;
    return code;
}

const Passed *next_passed(const Messages *m, const Passed *after) {
    if (after && after->next) return after->next;
    for (int r = after ? after->message.source + 1 : 0; r < m->size; r++)
        if (m->peers[r].first) return m->peers[r].first;
    return NULL;
}
