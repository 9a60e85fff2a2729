/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes train with 1-bit Adam over a socket of their own. Build with
 *   cc -std=c99 train.c $(pkg-config --cflags --libs thinwire_c) -o train */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thinwire/thinwire.h"

enum { kRanks = 2, kRows = 300, kColumns = 100, kSize = kRows * kColumns };

static void check(thinwire_status status) {
  if (status == THINWIRE_OK) return;
  fprintf(stderr, "%s\n", thinwire_last_error());
  exit(1); /* The peer reads the end of the socket. */
}

/* Sends to the other rank and receives from it, both at once. Otherwise each
 * could fill the socket while the other one waits. */
static int exchange(void* context, const thinwire_exchange* of) {
  const int socket = *(const int*)context;
  const char* to_send = of->num_sends ? of->sends[0].data : NULL;
  size_t left = of->num_sends ? of->sends[0].bytes : 0;
  char* to_fill = of->num_receives ? of->receives[0].data : NULL;
  size_t missing = of->num_receives ? of->receives[0].bytes : 0;
  while (left > 0 || missing > 0) {
    struct pollfd polled = {socket, 0, 0};
    if (left > 0) polled.events |= POLLOUT;
    if (missing > 0) polled.events |= POLLIN;
    if (poll(&polled, 1, (int)(of->seconds_left * 1e3)) <= 0) return 1;
    if (polled.revents & POLLOUT) {
      const ssize_t sent = send(socket, to_send, left, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return 2;
      to_send += sent;
      left -= (size_t)sent;
    }
    if (polled.revents & (POLLIN | POLLHUP | POLLERR)) {
      const ssize_t received = recv(socket, to_fill, missing, MSG_DONTWAIT);
      if (received <= 0) return 3;
      to_fill += received;
      missing -= (size_t)received;
    }
  }
  return 0;
}

/* Finds the centre of points that every rank draws for itself. */
static void train(thinwire_comm* comm) {
  static const size_t shape[] = {kRows, kColumns};
  static const thinwire_parameter centre = {"centre", shape, 2};
  static const char config[] =
      "{\"train_micro_batch_size_per_gpu\": 1,"
      " \"optimizer\": {\"type\": \"OneBitAdam\","
      "                 \"params\": {\"lr\": 0.02, \"freeze_step\": 100}}}";
  static float params[kSize], grads[kSize];
  const int rank = thinwire_comm_rank(comm);
  thinwire_engine* engine;
  thinwire_report report = {.struct_size = sizeof report};
  check(thinwire_engine_new(comm, config, &centre, 1, params, grads, &engine));
  srand((unsigned)rank);
  for (int step = 1; step <= 400; ++step) {
    check(thinwire_engine_begin_backward(engine));
    for (int i = 0; i < kSize; ++i) {
      const float noise = (float)rand() / (float)RAND_MAX - 0.5F;
      grads[i] += params[i] - (i % 2 ? -1.0F : 1.0F) + noise;
    }
    check(thinwire_engine_end_backward(engine));
    check(thinwire_engine_step(engine, &report));
    if (rank == 0 && step % 50 == 0)
      printf("step %d: %s, first number %g, %lu bytes sent\n", step,
             report.phase, params[0], (unsigned long)report.bytes_sent);
  }
  thinwire_engine_free(engine);
}

int main(void) {
  int ends[kRanks], status = 0;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  const pid_t child = fork();
  const int rank = child == 0;
  close(ends[1 - rank]);
  const thinwire_transport transport = {.struct_size = sizeof transport,
                                        .context = &ends[rank],
                                        .rank = rank,
                                        .size = kRanks,
                                        .exchange = exchange};
  thinwire_comm* comm;
  check(thinwire_comm_from_transport(&transport, 60, &comm));
  train(comm);
  thinwire_comm_free(comm);
  if (rank == 0) waitpid(child, &status, 0);
  return status != 0;
}
