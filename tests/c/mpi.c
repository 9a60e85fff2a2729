/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -np N mpi: communicators by the Fortran handle of an MPI communicator
 * that this program has made, here with its ranks in reverse order. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thinwire/thinwire.h"

enum { kElements = 4097 };
static const char kConfig[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
    "\"OneBitAdam\", \"params\": {\"lr\": 0.01, \"freeze_step\": 3}}}";

#define REQUIRE(condition)                                              \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition,        \
              thinwire_last_error());                                   \
      MPI_Abort(MPI_COMM_WORLD, 1);                                     \
    }                                                                   \
  } while (0)

static void refused(int handle, double seconds, thinwire_status status,
                    const char* text) {
  thinwire_comm* comm = NULL;
  REQUIRE(thinwire_comm_from_mpi(handle, seconds, &comm) == status);
  REQUIRE(comm == NULL && strstr(thinwire_last_error(), text) != NULL);
}

/* Five steps, of which the last two are compressed. */
static void train(thinwire_comm* comm, float* params) {
  static const size_t shape[] = {kElements};
  static const thinwire_parameter weight = {"weight", shape, 1};
  static float grads[kElements];
  thinwire_engine* engine = NULL;
  thinwire_report report;
  int step, i;
  const int rank = thinwire_comm_rank(comm);
  for (i = 0; i < kElements; ++i) params[i] = (float)rank;
  report.struct_size = sizeof report;
  REQUIRE(!thinwire_engine_new(comm, kConfig, &weight, 1, params, grads,
                               &engine));
  for (step = 1; step <= 5; ++step) {
    REQUIRE(!thinwire_engine_begin_backward(engine));
    for (i = 0; i < kElements; ++i)
      grads[i] += params[i] - (float)((i * 7 + rank * 3 + step) % 11);
    REQUIRE(!thinwire_engine_end_backward(engine));
    REQUIRE(!thinwire_engine_step(engine, &report));
  }
  REQUIRE(report.steps == 5 && (strcmp(report.phase, "compressed") == 0 ||
                                thinwire_comm_size(comm) == 1));
  thinwire_engine_free(engine);
}

int main(int argc, char** argv) {
  static float params[kElements], others[kElements];
  int rank, size, provided, handle;
  MPI_Comm reversed;
  thinwire_comm* comm = NULL;
  thinwire_comm* again = NULL;
  refused(0, 60, THINWIRE_FAILED_PRECONDITION, "MPI must be initialized");
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  handle = (int)MPI_Comm_c2f(reversed);

  refused(-1, 60, THINWIRE_INVALID_ARGUMENT, "fortran_handle must be");
  refused((int)MPI_Comm_c2f(MPI_COMM_NULL), 60, THINWIRE_INVALID_ARGUMENT,
          "fortran_handle must be");
  refused(1 << 20, 60, THINWIRE_INVALID_ARGUMENT, "got 1048576");
  refused(handle, 0, THINWIRE_INVALID_ARGUMENT, "seconds must be in (0, 1e9]");
  REQUIRE(thinwire_comm_from_mpi(handle, 60, NULL) ==
          THINWIRE_INVALID_ARGUMENT);

  REQUIRE(!thinwire_comm_from_mpi(handle, 60, &comm));
  MPI_Comm_free(&reversed);
  refused(handle, 60, THINWIRE_INVALID_ARGUMENT, "fortran_handle must be");
  REQUIRE(thinwire_comm_rank(comm) == size - 1 - rank);
  REQUIRE(thinwire_comm_size(comm) == size);
  train(comm, params);
  MPI_Allreduce(params, others, kElements, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  REQUIRE(memcmp(params, others, sizeof params) == 0);

  /* The ranks in their own order hold other data, but the same set of them. */
  REQUIRE(!thinwire_comm_from_mpi((int)MPI_Comm_c2f(MPI_COMM_WORLD), 60,
                                  &again));
  REQUIRE(thinwire_comm_rank(again) == rank);
  train(again, others);
  REQUIRE(memcmp(params, others, sizeof params) == 0);
  thinwire_comm_free(again);
  again = NULL;

  /* A communicator of one rank, while the other ranks do nothing. */
  if (rank == 0) {
    REQUIRE(!thinwire_comm_from_mpi((int)MPI_Comm_c2f(MPI_COMM_SELF), 60,
                                    &again));
    REQUIRE(thinwire_comm_size(again) == 1 && !thinwire_comm_barrier(again));
    thinwire_comm_free(again);
  }

  /* The last rank gives up, and the others learn why. */
  if (size > 1 && rank == 0) {
    REQUIRE(!thinwire_comm_give_up(comm, "no more data"));
  } else if (size > 1) {
    REQUIRE(thinwire_comm_barrier(comm) == THINWIRE_COMM_FAILURE);
    REQUIRE(strstr(thinwire_last_error(), "gave up") != NULL);
  }
  thinwire_comm_free(comm);
  MPI_Finalize();
  if (rank == 0) printf("%d ranks agree\n", size);
  return 0;
}
