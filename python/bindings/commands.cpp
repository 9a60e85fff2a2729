// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "communicator.h"
#include "support/errors.h"
#include "support/gil.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

std::shared_ptr<comm::Communicator> joined(nb::handle join) {
  const Gil gil;
  if (!gil)
    throw Error(ErrorCode::kUnavailable, "the Python interpreter is ending");
  try {
    const nb::object made = join();
    return nb::cast<const CommunicatorHandle&>(made).get();
  } catch (const nb::python_error& error) {
    throw Error(ErrorCode::kUnavailable, text_of(error));
  }
}

double measured(nb::handle copies_gbps) {
  const Gil gil;
  if (!gil)
    throw Error(ErrorCode::kUnavailable, "the Python interpreter is ending");
  try {
    return nb::cast<double>(copies_gbps());
  } catch (const nb::python_error& error) {
    throw Error(ErrorCode::kUnavailable, text_of(error));
  }
}

// Returns the exit code, and the texts for stdout and stderr.
std::tuple<int, std::string, std::string> run_command(
    const std::string& program, const std::vector<std::string>& arguments,
    nb::handle join, std::vector<std::pair<std::string, std::string>> lines,
    std::string not_ready, nb::handle copies_gbps) {
  std::ostringstream out;
  std::ostringstream err;
  commands::Front front{.out = out,
                        .err = err,
                        .lines = std::move(lines),
                        .not_ready = std::move(not_ready),
                        .has_transports = true};
  front.copies_gbps = [copies_gbps] { return measured(copies_gbps); };
  if (!join.is_none()) front.join = [join] { return joined(join); };
  const WithoutGil released;
  const int code = commands::run_commands(program, arguments, front);
  return {code, out.str(), err.str()};
}

}  // namespace

void bind_commands(nb::module_& module) {
  module.def("run_command", &run_command, "program"_a, "arguments"_a,
             "join"_a.none(), "lines"_a, "not_ready"_a, "copies_gbps"_a);
}

}  // namespace thinwire::python
