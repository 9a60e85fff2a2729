// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/commit/fault_file_system.h"
#include "checkpoint/dummy.h"

/// The saves during which power is cut or an operation fails.
namespace thinwire::test {

inline constexpr int kScenarioRanks = 3;
inline const std::string kScenarioRoot = "/runs/a";

struct Scenario {
  std::string name;
  FaultDisk before;
  std::function<void(checkpoint::Root&, comm::Communicator&)> act;
  std::optional<std::int64_t> old_tag{};  ///< Newest before it ...
  std::int64_t new_tag = 0;               ///< ... and after.
  bool writes = false;
};

/// A first save, a next one, one over a step that is there, retention, and
/// starts after crashes.
[[nodiscard]] std::vector<Scenario> scenarios();

/// Collective: writes a dummy.
checkpoint::Root::Committed write_dummy(checkpoint::Root& root,
                                        comm::Communicator& comm,
                                        const Dummy& dummy);
[[nodiscard]] checkpoint::Root open_root(FaultFileSystem& disk,
                                         comm::Communicator& comm);

}  // namespace thinwire::test
