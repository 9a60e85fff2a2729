// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/scenarios.h"

#include <algorithm>
#include <stdexcept>

namespace thinwire::test {
namespace {

using checkpoint::Root;

FaultDisk after_saves(const std::vector<Dummy>& dummies) {
  FaultFileSystem disk(kScenarioRanks);
  on_ranks(kScenarioRanks, [&](comm::Communicator& comm) {
    Root root = open_root(disk, comm);
    for (const Dummy& dummy : dummies) write_dummy(root, comm, dummy);
  });
  return disk.disk().after_power_cut(Loss::kAll, 0);
}

// A disk as it was in the middle of `second`, all of it kept: the first moment
// of which `is_it` is true of the names in ROOT.
FaultDisk in_the_middle(const Dummy& first, const Dummy& second,
                        const std::function<bool(FaultFileSystem&)>& is_it) {
  FaultFileSystem disk(kScenarioRanks, after_saves({first}));
  disk.keep_moments();
  on_ranks(kScenarioRanks, [&](comm::Communicator& comm) {
    Root root = open_root(disk, comm);
    write_dummy(root, comm, second);
  });
  for (const FaultDisk& moment : disk.take_moments()) {
    const FaultDisk left = moment.after_power_cut(Loss::kNothing, 0);
    FaultFileSystem files(1, left);
    if (is_it(files)) return left;
  }
  throw std::logic_error("the save had no such moment");
}

bool has_name(FaultFileSystem& disk, const std::string& part) {
  const auto names = disk.of_rank(0).list(kScenarioRoot);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find(part) != std::string::npos;
  });
}

bool has_tag(FaultFileSystem& disk, std::int64_t tag) {
  return load_dummy(disk.of_rank(0), kScenarioRoot).tag == tag;
}

auto writing(const Dummy& dummy) {
  return [dummy](Root& root, comm::Communicator& comm) {
    write_dummy(root, comm, dummy);
  };
}

void only_start(Root&, comm::Communicator&) {}

}  // namespace

Root::Committed write_dummy(Root& root, comm::Communicator& comm,
                            const Dummy& dummy) {
  return root.write(dummy_contents(comm, dummy));
}

Root open_root(FaultFileSystem& disk, comm::Communicator& comm) {
  return Root(disk.of_rank(comm.rank()), comm, kScenarioRoot, kRun,
              quick_options());
}

std::vector<Scenario> scenarios() {
  const Dummy one{.step = 1, .tag = 1};
  const Dummy two{.step = 2, .tag = 2};
  const Dummy again{.step = 1, .tag = 2};
  const auto retain = [](Root& root, comm::Communicator&) {
    root.retain({.keep_last = 1}, "");
  };
  return {
      {"a first save", {}, writing(one), {}, 1, true},
      {"a next save", after_saves({one}), writing(two), 1, 2, true},
      {"a step saved again", after_saves({one}), writing(again), 1, 2, true},
      {"retention", after_saves({one, two, {.step = 3, .tag = 3}}), retain, 3,
       3},
      {"a start after a crash before the commit",
       in_the_middle(one, two,
                     [](auto& disk) { return has_name(disk, ".partial-"); }),
       only_start, 1, 1},
      {"a start after a crash behind the commit",
       in_the_middle(one, two, [](auto& disk) { return has_tag(disk, 2); }),
       only_start, 2, 2},
      {"a start after a crash between two renames",
       in_the_middle(one, again,
                     [](auto& disk) { return has_name(disk, ".replaced-"); }),
       only_start, 2, 2},
      {"a start after a crash before a removal",
       in_the_middle(one, again,
                     [](auto& disk) { return has_name(disk, ".deleting-"); }),
       only_start, 2, 2},
  };
}

}  // namespace thinwire::test
