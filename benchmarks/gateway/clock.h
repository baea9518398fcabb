// The clock and the sockets of both programs here.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline void unblock(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK); }

static inline void die(const char *what) {
  perror(what);
  exit(1);
}

// An array that has room for one more of `size` bytes.
static inline void *with_room(void *array, size_t used, size_t *room, size_t size) {
  if (used < *room) return array;
  *room = *room ? *room * 2 : 64;
  void *grown = realloc(array, *room * size);
  if (!grown) die("realloc");
  return grown;
}
