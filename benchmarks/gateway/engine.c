// A fast fake OpenAI server: one thread, epoll, canned answers, so that gateways can be timed.
//
// The model's name says how it answers:
//   plain     at once            slow-100   after 100 ms
//   paced-20  a chunk each 20 ms silent     never
//   half      the beginning, and then nothing more
//   flood     40 MB of events, as fast as they are taken
// `max_tokens` is the number of chunks of a stream. GET /stats tells how many requests came, are
// open, and were left by their client. Prints `READY http://127.0.0.1:PORT/v1`; ends when its
// stdin closes.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

enum { MAX_REQUEST = 4 << 20, PROMPT_TOKENS = 100, EVENTS = 1024, FLOOD = 40 << 20 };

typedef struct {
  int fd;
  char *in;  // the request, as far as it has come
  size_t in_len, in_room;
  char *out;  // what is to be written next
  size_t out_len, out_at;
  int is_open;     // a request is being answered
  int left, of;    // chunks of its stream
  int64_t due_us;  // of the next piece; 0: none
  int64_t pace_us;
  size_t heap_at;  // 1 and up while it is in the heap
  char *whole;     // an unstreamed answer that comes later
} Conn;

static int poller;
static long requests, opened, aborted;
static Conn **heap;  // by due time; heap[0] is unused
static size_t heap_len, heap_room;

// --- who is due next ---

static void place(size_t at, Conn *conn) {
  heap[at] = conn;
  conn->heap_at = at;
}

static void rise(size_t at, Conn *conn) {
  for (; at > 1 && heap[at / 2]->due_us > conn->due_us; at /= 2) place(at, heap[at / 2]);
  place(at, conn);
}

static void sink(size_t at, Conn *conn) {
  for (size_t child; (child = at * 2) <= heap_len; at = child) {
    if (child < heap_len && heap[child + 1]->due_us < heap[child]->due_us) child++;
    if (heap[child]->due_us >= conn->due_us) break;
    place(at, heap[child]);
  }
  place(at, conn);
}

static void forget(Conn *conn) {
  size_t at = conn->heap_at;
  if (!at) return;
  conn->heap_at = 0;
  Conn *last = heap[heap_len--];
  if (last == conn) return;
  rise(at, last);
  sink(last->heap_at, last);
}

static void schedule(Conn *conn, int64_t due_us) {
  forget(conn);
  conn->due_us = due_us;
  heap = with_room(heap, heap_len + 1, &heap_room, sizeof *heap);
  rise(++heap_len, conn);
}

// --- what is written ---

static void append(Conn *conn, const char *data, size_t len) {
  conn->out = realloc(conn->out, conn->out_len + len);
  memcpy(conn->out + conn->out_len, data, len);
  conn->out_len += len;
}

static void chunk(Conn *conn, const char *event) {
  char frame[1024];
  int len = snprintf(frame, sizeof frame, "%zx\r\ndata: %s\n\n\r\n", strlen(event) + 8, event);
  append(conn, frame, (size_t)len);
}

#define CHUNK \
  "{\"id\":\"chatcmpl-upstream\",\"created\":1700000000,\"model\":\"plain\"," \
  "\"object\":\"chat.completion.chunk\",\"choices\":["

static void word(Conn *conn) {
  chunk(conn, CHUNK "{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,"
                    "\"finish_reason\":null}]}");
}

static void closing(Conn *conn) {
  char usage[512];
  snprintf(usage, sizeof usage, CHUNK "],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,"
           "\"total_tokens\":%d}}", PROMPT_TOKENS, conn->of, PROMPT_TOKENS + conn->of);
  chunk(conn, CHUNK "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}");
  chunk(conn, usage);
  chunk(conn, "[DONE]");
  append(conn, "0\r\n\r\n", 5);
}

static void answer(Conn *conn, const char *body) {
  char head[128];
  int len = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n\r\n", strlen(body));
  append(conn, head, (size_t)len);
  append(conn, body, strlen(body));
}

static void whole(Conn *conn) {
  static const char words[] = "a quick answer that says nothing at all, at some length. ";
  char body[1024];
  snprintf(body, sizeof body, "{\"id\":\"chatcmpl-upstream\",\"created\":1700000000,"
           "\"model\":\"plain\",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,"
           "\"message\":{\"role\":\"assistant\",\"content\":\"%s%s%s%s%s\"},\"logprobs\":null,"
           "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%d,"
           "\"completion_tokens\":%d,\"total_tokens\":%d}}", words, words, words, words, words,
           PROMPT_TOKENS, conn->of, PROMPT_TOKENS + conn->of);
  answer(conn, body);
}

static void finished(Conn *conn) {
  if (conn->is_open) opened--;
  conn->is_open = 0;
}

static void ended(Conn *conn) {
  if (conn->is_open) {
    opened--;
    aborted++;
  }
  forget(conn);
  close(conn->fd);
  free(conn->in);
  free(conn->out);
  free(conn);
}

// Writes what there is; 0 if the client is gone.
static int flush(Conn *conn) {
  while (conn->out_at < conn->out_len) {
    ssize_t n = send(conn->fd, conn->out + conn->out_at, conn->out_len - conn->out_at,
                     MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    conn->out_at += (size_t)n;
  }
  conn->out_at = conn->out_len = 0;
  return 1;
}

static void due(Conn *conn, int64_t now) {
  forget(conn);
  if (conn->whole) {
    whole(conn);
    conn->whole = NULL;
    finished(conn);
  } else if (conn->out_len) {  // it takes nothing just now
    schedule(conn, now + 1000);
  } else if (conn->left) {
    conn->left--;
    word(conn);
    schedule(conn, conn->pace_us ? conn->due_us + conn->pace_us : now);
  } else {
    closing(conn);
    finished(conn);
  }
  if (!flush(conn)) ended(conn);
}

// --- what is asked ---

static long number(const char *body, const char *name, long otherwise) {
  const char *at = strstr(body, name);
  return at ? strtol(at + strlen(name) + (at[strlen(name)] == ' '), NULL, 10) : otherwise;
}

static void begin_stream(Conn *conn, const char *kind) {
  static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                             "transfer-encoding: chunked\r\n\r\n";
  append(conn, head, sizeof head - 1);
  conn->pace_us = strncmp(kind, "paced-", 6) ? 0 : 1000 * atol(kind + 6);
  if (!strncmp(kind, "half", 4)) {
    word(conn);
  } else {
    conn->left = strncmp(kind, "flood", 5) ? conn->of : FLOOD / 160;
    schedule(conn, now_us() + (strncmp(kind, "slow-", 5) ? 0 : 1000 * atol(kind + 5)));
  }
}

static void asked(Conn *conn, const char *head, const char *body) {
  if (!strncmp(head, "GET /stats", 10)) {
    char stats[128];
    snprintf(stats, sizeof stats, "{\"requests\":%ld,\"open\":%ld,\"aborted\":%ld}", requests,
             opened, aborted);
    answer(conn, stats);
    return;
  }
  if (head[0] == 'G') {
    answer(conn, "{\"object\":\"list\",\"data\":[{\"id\":\"plain\",\"object\":\"model\"}]}");
    return;
  }
  requests++;
  opened++;
  conn->is_open = 1;
  const char *model = strstr(body, "\"model\":");
  const char *kind = model ? strchr(model + 8, '"') : NULL;
  kind = kind ? kind + 1 : "plain";
  conn->of = (int)number(body, "\"max_tokens\":", number(body, "\"max_completion_tokens\":", 64));
  int is_stream = strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true");
  if (!strncmp(kind, "silent", 6)) return;
  if (is_stream) {
    begin_stream(conn, kind);
  } else if (!strncmp(kind, "half", 4)) {
    append(conn, "HTTP/1.1 200 OK\r\ncontent-length: 700\r\n\r\n{", 42);
  } else if (!strncmp(kind, "slow-", 5)) {
    conn->whole = "";
    schedule(conn, now_us() + 1000 * atol(kind + 5));
  } else {
    whole(conn);
    finished(conn);
  }
}

// One request, if it has come whole; 0 if it can't be one.
static int take(Conn *conn) {
  conn->in[conn->in_len] = 0;
  char *end = strstr(conn->in, "\r\n\r\n");
  if (!end) return conn->in_len < MAX_REQUEST;
  const char *length = strcasestr(conn->in, "\r\ncontent-length:");
  size_t head_len = (size_t)(end + 4 - conn->in);
  size_t body_len = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
  if (conn->in_len < head_len + body_len) return body_len < MAX_REQUEST;
  asked(conn, conn->in, end + 4);
  conn->in_len -= head_len + body_len;
  memmove(conn->in, conn->in + head_len + body_len, conn->in_len);
  return flush(conn);
}

static int readable(Conn *conn) {
  if (conn->in_room - conn->in_len < 65536) {
    conn->in_room = conn->in_len + 131072;
    conn->in = realloc(conn->in, conn->in_room);
  }
  ssize_t n = recv(conn->fd, conn->in + conn->in_len, conn->in_room - conn->in_len - 1, 0);
  if (n < 0 && errno == EAGAIN) return 1;
  if (n <= 0) return 0;
  conn->in_len += (size_t)n;
  return take(conn);
}

static void accepted(int listener) {
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Conn *conn = calloc(1, sizeof *conn);
    conn->fd = fd;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = conn};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

static int listening(void) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, len) || listen(listener, 4096)) die("listen");
  getsockname(listener, (struct sockaddr *)&address, &len);
  printf("READY http://127.0.0.1:%d/v1\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

int main(void) {
  poller = epoll_create1(0);
  int listener = listening();
  Conn door = {.fd = listener}, parent = {.fd = 0};
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &door};
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  event.data.ptr = &parent;
  epoll_ctl(poller, EPOLL_CTL_ADD, 0, &event);
  for (struct epoll_event events[EVENTS];;) {
    int64_t wait_us = heap_len ? heap[1]->due_us - now_us() : -1;
    int wait_ms = !heap_len ? -1 : wait_us <= 0 ? 0 : (int)(wait_us / 1000);
    int n = epoll_wait(poller, events, EVENTS, wait_ms);
    for (int i = 0; i < n; i++) {
      Conn *conn = events[i].data.ptr;
      if (conn == &door) accepted(listener);
      else if (conn == &parent) return 0;  // nobody writes to it, so it's the end
      else if (!readable(conn)) ended(conn);
    }
    int64_t now = now_us();
    for (size_t most = heap_len; most && heap_len && heap[1]->due_us <= now; most--) {
      due(heap[1], now);
    }
  }
}
