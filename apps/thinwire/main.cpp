// SPDX-License-Identifier: Apache-2.0
#include "apps/support/program.h"
#include "apps/thinwire/bench.h"
#include "apps/thinwire/checkpoint.h"
#include "apps/thinwire/doctor.h"
#include "apps/thinwire/plan.h"
#include "apps/thinwire/replay.h"

int main(int argc, char** argv) {
  CLI::App app("Tools around the Thinwire library", "thinwire");
  app.require_subcommand(1);
  thinwire::apps::add_replay(app);
  thinwire::apps::add_bench(app);
  thinwire::apps::add_checkpoint(app);
  thinwire::apps::add_plan(app);
  app.add_subcommand(
         "doctor",
         "Report what this machine and build have, and how to improve them")
      ->callback(thinwire::apps::run_doctor);
  return thinwire::apps::run_program(app, argc, argv);
}
