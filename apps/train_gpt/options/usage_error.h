// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/Error.hpp>
#include <string>

namespace thinwire::train_gpt {

/// Wrong usage: the program ends with exit code 2.
class UsageError : public CLI::ParseError {
 public:
  explicit UsageError(const std::string& what)
      : CLI::ParseError(what, CLI::ExitCodes::ValidationError) {}
};

}  // namespace thinwire::train_gpt
