// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/checkpoint/options.h"

/// A checkpoint as save() writes it, with all that there may be in one.
// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::checkpoint::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

struct Full {
  int world = 2;
  std::int64_t seen = 3;  ///< The application's numbers begin with it.
  Residuals residuals = Residuals::kPerRank;
  float frozen = 0.5f;
};

/// 0/1 Adam inside of local steps; scalars and arrays of the application, of
/// all ranks and of each; a frozen tensor, a mask, a tied name. Gives its path,
/// ROOT/step-...
std::string write_full(const std::string& root, const Full& full = {});

}  // namespace thinwire::checkpoint::test
