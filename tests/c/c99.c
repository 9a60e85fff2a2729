/* SPDX-License-Identifier: Apache-2.0 */
/* One step on one rank, in C99 without extensions. */
#include <stdio.h>

#include "thinwire/thinwire.h"

int main(void) {
  static const size_t shape[] = {2, 3};
  static const thinwire_parameter weight = {"weight", shape, 2};
  float params[6] = {1, 2, 3, 4, 5, 6};
  float grads[6];
  thinwire_comm* comm = NULL;
  thinwire_engine* engine = NULL;
  thinwire_report report;
  int i;
  report.struct_size = sizeof report;
  if (thinwire_comm_local(1, &comm) ||
      thinwire_engine_new(comm,
                          "{\"train_batch_size\": 1, \"optimizer\": {\"type\": "
                          "\"Adam\", \"params\": {\"lr\": 0.5}}}",
                          &weight, 1, params, grads, &engine) ||
      thinwire_engine_begin_backward(engine)) {
    fprintf(stderr, "%s\n", thinwire_last_error());
    return 1;
  }
  for (i = 0; i < 6; ++i) grads[i] = 1;
  if (thinwire_engine_end_backward(engine) ||
      thinwire_engine_step(engine, &report)) {
    fprintf(stderr, "%s\n", thinwire_last_error());
    return 1;
  }
  thinwire_engine_free(engine);
  thinwire_comm_free(comm);
  /* Adam's first step is one learning rate. */
  return report.steps == 1 && params[0] > 0.49F && params[0] < 0.51F ? 0 : 1;
}
