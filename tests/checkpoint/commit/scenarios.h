// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/commit/fault_file_system.h"
#include "checkpoint/commit/root.h"

/// Checkpoints of tensors that mean nothing, to watch how they are written, and
/// the saves during which power is cut or an operation fails.
namespace thinwire::test {

inline const std::string kRun(32, 'a');
inline const std::string kOtherRun(32, 'b');

/// Everything in it follows from the tag.
struct Dummy {
  std::int64_t step = 0;
  std::int64_t tag = 0;
};

/// Returns this rank's part of a save: three small tensors, and on rank 0
/// weights and an attachment, too.
[[nodiscard]] checkpoint::Root::Contents dummy_contents(
    const comm::Communicator& comm, const Dummy& dummy);

/// Element for element what a file of a dummy holds behind its header.
[[nodiscard]] std::byte dummy_byte(const std::string& file, std::int64_t tag,
                                   std::uint64_t offset);

/// The newest checkpoint in a ROOT, read to its last byte.
struct LoadedDummy {
  std::optional<std::int64_t> tag{};  ///< Empty: there is none.
  std::string problem{};              ///< What is wrong with it.
};
[[nodiscard]] LoadedDummy load_dummy(checkpoint::FileSystem& files,
                                     const std::string& root);
/// Returns the newest one's tag, -1 where there is none. All must be right.
[[nodiscard]] std::int64_t newest_tag(checkpoint::FileSystem& files,
                                      const std::string& root);

/// Calls body(communicator) for ranks that are threads.
void on_ranks(int world, const std::function<void(comm::Communicator&)>& body);

/// Collective: one save by a Root of its own.
checkpoint::Root::Committed save_dummy(checkpoint::FileSystem& files,
                                       comm::Communicator& comm,
                                       const std::string& root,
                                       const Dummy& dummy,
                                       const std::string& run = kRun);

/// Tests' own: patience of milliseconds.
[[nodiscard]] checkpoint::Root::Options quick_options();

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
