// A closed-loop load client: N connections, each sending its next request when it has its answer.
//
//   load PORT REQUEST_FILE CLIENTS REQUESTS SECONDS STAGGER_MS CHUNKS
//
// REQUEST_FILE holds one whole HTTP request. It stops after REQUESTS (0: no end) or SECONDS, and
// waits for what is out. CHUNKS: the events of a stream before its closing ones, which come
// together; gaps between those alone are told. Prints one line of JSON, times in milliseconds.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

enum { PATIENCE_US = 30000000, EVENTS = 512, BUFFER = 262144 };

typedef enum { HEAD, FIXED, SIZE, DATA, AFTER, TRAILER } State;

typedef struct {
  int fd;
  int64_t starts_us;  // its first request is due then
  int64_t began_us, last_us;
  State state;
  char line[16384];  // of the head, or of a chunk's size
  size_t line_len;
  long left;  // bytes of the body or of the chunk
  int events, is_stream, is_done, status;
  char before;   // the byte before this one
  int at_start;  // of an event
  int is_comment;
  char tail[8];  // of the body, for the stream's last word
  size_t sent;
} Client;

typedef struct {
  float *ms;
  size_t len, room;
} Samples;

static char *request;
static size_t request_len;
static struct sockaddr_in address;
static int poller, chunks;
static long good, errors, events_seen, to_send;
static char first_error[256];
static int64_t stop_us;
static int running;
static Samples totals, firsts, gaps;

static void sample(Samples *samples, int64_t us) {
  samples->ms = with_room(samples->ms, samples->len, &samples->room, sizeof *samples->ms);
  samples->ms[samples->len++] = (float)us / 1000;
}

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void tell(const char *name, Samples *samples) {
  qsort(samples->ms, samples->len, sizeof *samples->ms, by_size);
  size_t n = samples->len;
  if (!n) printf("\"%s_p50\":null,\"%s_p99\":null,", name, name);
  else printf("\"%s_p50\":%.3f,\"%s_p99\":%.3f,", name, samples->ms[n / 2], name,
              samples->ms[n * 99 / 100]);
}

static void failed(Client *client, const char *why) {
  if (!errors++) snprintf(first_error, sizeof first_error, "%s, status %d after %d events", why,
                          client->status, client->events);
}

// --- sending ---

static void leave(Client *client) {
  close(client->fd);
  client->fd = -1;
  running--;
}

static void send_rest(Client *client) {
  while (client->sent < request_len) {
    ssize_t n = send(client->fd, request + client->sent, request_len - client->sent, MSG_NOSIGNAL);
    if (n < 0) return;  // it is tried again when the socket takes more; a closed one is read so
    client->sent += (size_t)n;
  }
}

static void ask(Client *client) {
  if (!to_send || now_us() >= stop_us) {
    leave(client);
    return;
  }
  to_send--;
  client->began_us = client->last_us = now_us();
  client->state = HEAD;
  client->line_len = client->sent = 0;
  client->events = client->is_done = client->status = client->is_stream = 0;
  client->at_start = 1;
  send_rest(client);
}

static void join(Client *client) {
  client->fd = socket(AF_INET, SOCK_STREAM, 0);
  int on = 1;
  setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(client->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
  unblock(client->fd);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = client};
  epoll_ctl(poller, EPOLL_CTL_ADD, client->fd, &event);
}

static void begin(Client *client) {
  join(client);
  ask(client);
}

// --- reading ---

static void done(Client *client, int64_t now) {
  client->is_done = 1;
  int is_whole = !client->is_stream || !memcmp(client->tail, "[DONE]", 6);
  if (client->status == 200 && is_whole) {
    good++;
    sample(&totals, now - client->began_us);
  } else {
    failed(client, is_whole ? "refused" : "the stream was cut");
  }
}

static void event_ended(Client *client, int64_t now) {
  client->events++;
  events_seen++;
  if (client->events == 1) sample(&firsts, now - client->began_us);
  else if (client->events <= chunks) sample(&gaps, now - client->last_us);
  client->last_us = now;
}

static void body(Client *client, const char *data, size_t len, int64_t now) {
  if (!client->is_stream) return;
  for (size_t i = 0; i < len; i++) {
    if (client->at_start) client->is_comment = data[i] == ':';
    int ends = data[i] == '\n' && client->before == '\n';
    if (ends && !client->is_comment) event_ended(client, now);
    client->at_start = ends;
    client->before = data[i];
    if (data[i] != '\n') {
      memmove(client->tail, client->tail + 1, 5);
      client->tail[5] = data[i];
    }
  }
}

static void head_ended(Client *client) {
  client->line[client->line_len] = 0;
  const char *length = strcasestr(client->line, "\r\ncontent-length:");
  client->status = atoi(client->line + 9);
  client->is_stream = strcasestr(client->line, "text/event-stream") != NULL;
  client->state = length ? FIXED : SIZE;
  client->left = length ? atol(length + 17) : 0;
  client->line_len = 0;
}

// A line of the framing; 1 if it is the last of the answer.
static int line_ended(Client *client) {
  client->line[client->line_len] = 0;
  size_t len = client->line_len;
  client->line_len = 0;
  if (client->state == SIZE) {
    client->left = strtol(client->line, NULL, 16);
    client->state = client->left ? DATA : TRAILER;
  } else if (client->state == AFTER) {
    client->state = SIZE;
  } else {
    return len <= 2;
  }
  return 0;
}

static void take(Client *client, const char *data, size_t len, int64_t now) {
  for (size_t i = 0; i < len && !client->is_done;) {
    if (client->state == FIXED || client->state == DATA) {
      size_t part = (size_t)client->left < len - i ? (size_t)client->left : len - i;
      body(client, data + i, part, now);
      i += part;
      client->left -= (long)part;
    } else {
      if (client->line_len + 1 >= sizeof client->line) client->line_len = 0;
      client->line[client->line_len++] = data[i];
      int ends = data[i++] == '\n';
      if (client->state == HEAD) {
        if (ends && client->line_len > 3 && client->line[client->line_len - 3] == '\n') {
          head_ended(client);
        }
      } else if (ends && line_ended(client)) {
        done(client, now);
      }
    }
    if (client->left == 0 && client->state == FIXED) done(client, now);
    if (client->left == 0 && client->state == DATA) client->state = AFTER;
  }
}

static void readable(Client *client) {
  static char data[BUFFER];
  for (;;) {
    ssize_t n = recv(client->fd, data, sizeof data, 0);
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      failed(client, "the connection was closed");
      close(client->fd);
      begin(client);
      return;
    }
    take(client, data, (size_t)n, now_us());
    if (client->is_done) {
      ask(client);
      if (client->fd < 0) return;
    }
  }
  if (client->sent < request_len) send_rest(client);
}

static void read_request(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) die(path);
  request = malloc(1 << 24);
  request_len = fread(request, 1, 1 << 24, file);
  fclose(file);
}

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  read_request(argv[2]);
  int clients = atoi(argv[3]);
  to_send = atol(argv[4]) ? atol(argv[4]) : 1L << 60;
  int64_t began = now_us(), stagger_us = 1000 * atol(argv[6]);
  stop_us = atof(argv[5]) > 0 ? began + (int64_t)(atof(argv[5]) * 1e6) : INT64_MAX;
  chunks = atoi(argv[7]);
  poller = epoll_create1(0);
  Client *all = calloc((size_t)clients, sizeof *all);
  running = clients;
  for (int i = 0; i < clients; i++) {
    all[i].fd = -1;
    all[i].starts_us = began + stagger_us * i / clients;
  }
  int next = 0;
  while (running) {
    while (next < clients && all[next].starts_us <= now_us()) begin(&all[next++]);
    struct epoll_event events[EVENTS];
    int n = epoll_wait(poller, events, EVENTS, next < clients ? 1 : 1000);
    for (int i = 0; i < n; i++) readable(events[i].data.ptr);
    int64_t now = now_us();
    for (int i = 0; i < next && !n; i++) {
      if (all[i].fd < 0 || now - all[i].last_us < PATIENCE_US) continue;
      failed(&all[i], "no answer in time");
      leave(&all[i]);
    }
  }
  printf("{\"good\":%ld,\"errors\":%ld,\"first_error\":\"%s\",\"wall_s\":%.4f,\"events\":%ld,", good,
         errors, first_error, (double)(now_us() - began) / 1e6, events_seen);
  tell("total_ms", &totals);
  tell("ttfc_ms", &firsts);
  tell("gap_ms", &gaps);
  printf("\"clients\":%d}\n", clients);
  return 0;
}
