// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

#include "apps/support/program.h"
#include "apps/thinwire/add_commands.h"
#include "commands/commands.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace {

// Only programs in a build tree have the scripts of a clone and train_gpt.
bool is_in_build_tree() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return !error && fs::exists(self.parent_path() / "../CMakeCache.txt", error);
}

thinwire::commands::Front this_program() {
  thinwire::commands::Front front{.out = std::cout,
                                  .err = std::cerr,
                                  .is_in_build_tree = is_in_build_tree()};
  if (thinwire::env::launched_ranks() > 1)
    front.join = thinwire::comm::from_environment;
  const std::string torch = THINWIRE_BUILD_TORCH;
  if (torch.empty()) {
    front.lines.emplace_back("torch", "no: " THINWIRE_BUILD_WHY_NOT_TORCH);
    if (front.is_in_build_tree)
      front.advice.emplace_back("LibTorch, for train_gpt (scripts/bootstrap)");
  } else {
    front.lines.emplace_back("torch", "yes: LibTorch " + torch);
  }
  return front;
}

}  // namespace

int main(int argc, char** argv) {
  // Lets std::cout write whole blocks, so that blocks of several ranks do not
  // mix. By default it writes pieces to a terminal, which mpiexec gives its
  // ranks.
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
