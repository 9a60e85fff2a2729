// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam, flat or by host: before its freeze against ZeRO-1, after it
// against plain loops.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "optim/low_bit/late_cases.h"
#include "support/hosts.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::test {

/// Who exchanges how: flat, or hosts of several ranks each.
struct LeanRanks {
  int world = 1;
  int per_host = 1;
  Placing placing = Placing::kBlocks;

  /// Workers of compressed exchanges.
  [[nodiscard]] int workers() const { return world / per_host; }
  [[nodiscard]] std::string name() const;
};

/// Every rank with the communicator that its optimizer is to have.
void run_lean_ranks(const LeanRanks& ranks,
                    const std::function<void(comm::Communicator&)>& body);

struct LeanVariant {
  const char* name;
  DType dtype;
  lean::LeanOnebitAdamOptions options;
  DType gradients = DType::kFloat32;  ///< From the freeze on.
};
std::vector<LeanVariant> lean_variants();

/// Some steps of late_layout(), bit for bit and on every rank.
void expect_plain_loops(const LeanRanks& ranks, const NamedGradients& gradients,
                        const LeanVariant& variant);

}  // namespace thinwire::test
