// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <string>

#include "apps/support/program.h"
#include "apps/thinwire/add_commands.h"
#include "commands/commands.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace {

thinwire::commands::Front this_program() {
  thinwire::commands::Front front{.out = std::cout, .err = std::cerr};
  if (thinwire::env::launched_ranks() > 1)
    front.join = thinwire::comm::from_environment;
  const std::string torch = THINWIRE_BUILD_TORCH;
  if (torch.empty()) {
    front.lines.emplace_back("torch", "no: " THINWIRE_BUILD_WHY_NOT_TORCH);
    front.advice.emplace_back("LibTorch, for train_gpt (scripts/bootstrap)");
  } else {
    front.lines.emplace_back("torch", "yes: LibTorch " + torch);
  }
  return front;
}

}  // namespace

int main(int argc, char** argv) {
  // Lets std::cout write whole blocks, also on a terminal, which mpiexec gives
  // its ranks. So blocks of ranks do not mix.
  std::ios::sync_with_stdio(false);
  CLI::App app("Tools around the Thinwire library", "thinwire");
  app.require_subcommand(1);
  thinwire::apps::add_replay(app);
  thinwire::apps::add_bench(app);
  thinwire::apps::add_checkpoint(app);
  const thinwire::commands::Front front = this_program();
  thinwire::commands::add_plan(app, front);
  thinwire::commands::add_doctor(app, front);
  thinwire::commands::add_config(app, front);
  return thinwire::apps::run_program(app, argc, argv);
}
