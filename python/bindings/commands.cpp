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

nb::bytes bytes_of(const std::ostringstream& stream) {
  const std::string text = stream.str();
  return nb::bytes(text.data(), text.size());
}

// Returns the exit code, and the texts for stdout and stderr. Arguments and
// texts are bytes, because names and contents of files need not be UTF-8.
std::tuple<int, nb::bytes, nb::bytes> run_command(
    const std::string& program, const std::vector<nb::bytes>& given,
    nb::handle join, std::vector<std::pair<std::string, std::string>> lines,
    std::string not_ready, nb::handle copies_gbps) {
  std::ostringstream out;
  std::ostringstream err;
  commands::Front front{.out = out,
                        .err = err,
                        .lines = std::move(lines),
                        .not_ready = std::move(not_ready),
                        .has_transports = true};
  front.copies_gbps = [copies_gbps] {
    return with_gil(ErrorCode::kUnavailable,
                    [&] { return nb::cast<double>(copies_gbps()); });
  };
  if (!join.is_none())
    front.join = [join] {
      return with_gil(ErrorCode::kUnavailable, [&] {
        const nb::object made = join();
        return nb::cast<const CommunicatorHandle&>(made).get();
      });
    };
  std::vector<std::string> arguments;
  for (const nb::bytes& argument : given)
    arguments.emplace_back(argument.c_str(), argument.size());
  const auto run = [&] {
    const WithoutGil released;
    return commands::run_commands(program, arguments, front);
  };
  const int code = run();
  return {code, bytes_of(out), bytes_of(err)};
}

}  // namespace

void bind_commands(nb::module_& module) {
  module.def("run_command", &run_command, "program"_a, "arguments"_a,
             "join"_a.none(), "lines"_a, "not_ready"_a, "copies_gbps"_a);
}

}  // namespace thinwire::python
