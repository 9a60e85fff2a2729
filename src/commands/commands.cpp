// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.h"

#include "commands/config_check.h"
#include "commands/doctor.h"
#include "commands/plan.h"
#include "commands/run_app.h"

namespace thinwire::commands {

void add_commands(CLI::App& app, const Front& front) {
  add_plan(app, front);
  add_doctor(app, front);
  add_config(app, front);
}

int run_commands(const std::string& program,
                 const std::vector<std::string>& arguments,
                 const Front& front) {
  CLI::App app("Tools around Thinwire", program);
  app.require_subcommand(1);
  add_commands(app, front);
  std::vector<const char*> argv{program.c_str()};
  for (const std::string& argument : arguments)
    argv.push_back(argument.c_str());
  return run_app(app, static_cast<int>(argv.size()), argv.data(), front.out,
                 front.err);
}

}  // namespace thinwire::commands
