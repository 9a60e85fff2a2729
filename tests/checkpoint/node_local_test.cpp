// SPDX-License-Identifier: Apache-2.0
// Hosts with a directory each: every host has its ranks' files and the same
// manifest, and what all have together is a checkpoint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "checkpoint/commit/scenarios.h"
#include "checkpoint/read/verified_file.h"
#include "support/environment.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/long.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::checkpoint::node_local_test {
namespace {

using test::Dummy;
using test::expect_error;
using test::FaultFileSystem;
using test::kRun;
using test::LoadedDummy;
using test::write_dummy;
using Leaders = std::vector<int>;

const std::string kRoot = test::kScenarioRoot;

// A disk for each host; rank r is on that of its leader.
class Hosts {
 public:
  explicit Hosts(Leaders leaders) : leaders_(std::move(leaders)) {
    for (const int leader : leaders_)
      if (!disks_.contains(leader)) disks_.emplace(leader, world());
  }

  [[nodiscard]] int world() const { return static_cast<int>(leaders_.size()); }
  [[nodiscard]] FaultFileSystem& disk_of(int rank) {
    return disks_.at(leaders_[static_cast<std::size_t>(rank)]);
  }
  [[nodiscard]] std::map<int, FaultFileSystem>& disks() { return disks_; }
  [[nodiscard]] FileSystem& files_of(int rank) {
    return disk_of(rank).of_rank(rank);
  }
  [[nodiscard]] Root open(comm::Communicator& comm,
                          const std::string& run = kRun) {
    Root::Options options = test::quick_options();
    options.storage = Storage::kNodeLocal;
    options.directories.leaders = leaders_;
    for (const int leader : leaders_)
      options.directories.hosts.push_back(fmt::format("host{}", leader));
    return Root(files_of(comm.rank()), comm, kRoot, comm.rank() == 0 ? run : "",
                options);
  }
  void run(const std::function<void(comm::Communicator&)>& body) {
    test::on_ranks(world(), body);
  }

 private:
  Leaders leaders_;
  std::map<int, FaultFileSystem> disks_;  // by leader
};

std::string text_of(FileSystem& files, const std::string& path) {
  return read_text(files, path, false, kMostManifestBytes);
}

// Copies like cp -r, over existing files.
void copy(FileSystem& from, FileSystem& to, const std::string& path) {
  if (from.stat(path).kind == FileInfo::Kind::kDirectory) {
    to.make_directories(path);
    for (const std::string& name : from.list(path))
      copy(from, to, path + '/' + name);
    return;
  }
  const std::string text = text_of(from, path);
  if (to.exists(path)) to.remove_file(path);
  const auto file = to.create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->close();
}

LoadedDummy load_merged(Hosts& hosts) {
  FaultFileSystem all(1);
  for (auto& [leader, disk] : hosts.disks())
    if (disk.of_rank(leader).exists(kRoot))
      copy(disk.of_rank(leader), all.of_rank(0), kRoot);
  return test::load_dummy(all.of_rank(0), kRoot);
}

std::vector<std::string> names(Hosts& hosts, int rank) {
  return hosts.files_of(rank).list(kRoot);
}

const std::vector<Leaders> kPlacings = {{0, 0, 2, 2}, {0, 1, 1}, {0, 1, 0},
                                        {0, 0, 0},    {0, 1, 2}, {0}};

TEST(NodeLocal, EachHostHasItsRanksFilesAndTheSameManifest) {
  for (const Leaders& leaders : kPlacings) {
    Hosts hosts(leaders);
    hosts.run([&](comm::Communicator& comm) {
      Root root = hosts.open(comm);
      write_dummy(root, comm, {7, 3});
    });
    const std::string step = kRoot + "/step-0000000007";
    const std::string manifest =
        text_of(hosts.files_of(0), step + "/manifest.json");
    std::size_t files = 0;
    for (auto& [leader, disk] : hosts.disks()) {
      FileSystem& here = disk.of_rank(leader);
      EXPECT_EQ(text_of(here, step + "/manifest.json"), manifest);
      EXPECT_EQ(text_of(here, kRoot + "/latest"), "step-0000000007\n");
      files += here.list(step).size() - 1;
    }
    EXPECT_EQ(files, leaders.size() + 2);
    for (int rank = 0; rank < hosts.world(); ++rank)
      EXPECT_TRUE(hosts.files_of(rank).exists(
          fmt::format("{}/state-{:05}-of-{:05}.safetensors", step, rank + 1,
                      hosts.world())));
    const LoadedDummy merged = load_merged(hosts);
    EXPECT_EQ(merged.problem, "");
    EXPECT_EQ(merged.tag, 3);
  }
}

TEST(NodeLocal, APartSaysWhichFileIsMissingOnWhichHost) {
  Hosts hosts({0, 0, 2});
  hosts.run([&](comm::Communicator& comm) {
    Root root = hosts.open(comm);
    write_dummy(root, comm, {1, 1});
  });
  for (const int rank : {0, 2}) {
    const auto found = find_checkpoints(hosts.files_of(rank), kRoot);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_FALSE(found[0].complete);
    const std::string& problem = found[0].problem;
    const std::string file = rank == 0 ? "/state-00003-of-00003.safetensors: "
                                       : "/state-00001-of-00003.safetensors: ";
    EXPECT_NE(problem.find(file + "it is missing on host "), problem.npos);
    EXPECT_NE(problem.find(rank == 0 ? "host host2 wrote" : "host host0 wrote"),
              problem.npos)
        << problem;
  }
}

TEST(NodeLocal, SavesContinueAndReplaceOrRemoveOldOnesOnEveryHost) {
  Hosts hosts({0, 1, 1});
  hosts.run([&](comm::Communicator& comm) {
    {
      Root root = hosts.open(comm);
      for (const Dummy& one : {Dummy{1, 1}, Dummy{2, 2}, Dummy{2, 3}})
        EXPECT_EQ(write_dummy(root, comm, one).save_index, one.tag);
    }
    Root root = hosts.open(comm);  // another start of the run
    EXPECT_EQ(write_dummy(root, comm, {3, 4}).save_index, 4);
    root.retain({.keep_last = 2}, "");
  });
  const std::vector<std::string> want = {".lock", "latest", "step-0000000002",
                                         "step-0000000003"};
  EXPECT_EQ(names(hosts, 0), want);
  EXPECT_EQ(names(hosts, 1), want);
  const LoadedDummy merged = load_merged(hosts);
  EXPECT_EQ(merged.problem, "");
  EXPECT_EQ(merged.tag, 4);
}

TEST(NodeLocal, EveryHostIsLockedAndNeedsRoomForItsOwn) {
  Hosts hosts({0, 1});
  hosts.run([&](comm::Communicator& comm) {
    Root root = hosts.open(comm);
    expect_error(ErrorCode::kFailedPrecondition, {"/.lock: ", "writes"},
                 [&] { const Root second = hosts.open(comm); });
    if (comm.rank() == 1) hosts.disk_of(1).set_free_bytes(16 << 20);
    comm.barrier();
    expect_error(ErrorCode::kUnavailable, {"rank 1: /runs/a: a checkpoint"},
                 [&] {
                   write_dummy(root, comm, {1, 1});
                 });
    // For its own file, of about 4 KiB, and for none of the other host's.
    if (comm.rank() == 1) hosts.disk_of(1).set_free_bytes((16 << 20) + 6000);
    comm.barrier();
    write_dummy(root, comm, {1, 2});
  });
  EXPECT_EQ(load_merged(hosts).tag, 2);
}

// ---- faults

using Fault = FaultFileSystem::Fault;

struct Outcome {
  std::set<std::string> errors{};  // of all ranks; "": none
  bool has_failed = false;
  LoadedDummy after_restart{};
  LoadedDummy next{};
  std::vector<std::string> partial{};  // on any disk, at the start after that
};

// One of the hosts fails at an operation of the second save; then all ranks
// start anew.
Outcome run(const Leaders& leaders, int where, const Fault& fault,
            const Dummy& second) {
  Hosts hosts(leaders);
  hosts.run([&](comm::Communicator& comm) {
    Root root = hosts.open(comm);
    write_dummy(root, comm, {1, 1});
  });
  Outcome outcome;
  std::mutex mutex;
  hosts.disk_of(where).set_fault(fault);
  hosts.run([&](comm::Communicator& comm) {
    std::string error;
    try {
      Root root = hosts.open(comm);
      write_dummy(root, comm, second);
    } catch (const Error& failure) {
      error = failure.what();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    outcome.errors.insert(error);
  });
  outcome.has_failed = hosts.disk_of(where).has_failed();
  hosts.disk_of(where).set_fault({});
  hosts.run(
      [&](comm::Communicator& comm) { const Root root = hosts.open(comm); });
  outcome.after_restart = load_merged(hosts);
  hosts.run([&](comm::Communicator& comm) {
    Root root = hosts.open(comm);
    write_dummy(root, comm, {50, 99});
  });
  outcome.next = load_merged(hosts);
  hosts.run(
      [&](comm::Communicator& comm) { const Root root = hosts.open(comm); });
  for (auto& [leader, disk] : hosts.disks())
    for (const std::string& name : disk.of_rank(leader).list(kRoot))
      if (name.find(".partial-") != name.npos) outcome.partial.push_back(name);
  return outcome;
}

void check(const Outcome& outcome) {
  ASSERT_EQ(outcome.errors.size(), 1U) << "ranks do not agree";
  const bool is_saved = outcome.errors.contains("");
  const LoadedDummy& loaded = outcome.after_restart;
  EXPECT_EQ(loaded.problem, "");
  EXPECT_TRUE(loaded.tag == 2 || (!is_saved && loaded.tag == 1))
      << loaded.tag.value_or(-1);
  EXPECT_EQ(outcome.next.tag, 99);
  EXPECT_EQ(outcome.next.problem, "");
  EXPECT_EQ(outcome.partial, std::vector<std::string>{});
}

TEST(NodeLocal, AHostThatFailsLeavesTheCheckpointBeforeOrTheNewOne) {
  std::size_t told = 0;
  for (const Leaders& leaders : {Leaders{0, 1}, Leaders{0, 1, 0, 1}})
    for (const Dummy& second : {Dummy{2, 2}, Dummy{1, 2}})
      for (const int where : {0, 1})
        for (std::size_t k = 1;; ++k) {
          bool has_failed = false;
          for (const bool lasts : {false, true}) {
            if (!test::is_long() && lasts != (k % 2 == 0)) continue;
            SCOPED_TRACE(fmt::format("{} ranks, step {}, host {}, operation {}",
                                     leaders.size(), second.step, where, k));
            const Fault fault{.operation = k, .number = EIO, .lasts = lasts};
            const Outcome outcome = run(leaders, where, fault, second);
            has_failed = has_failed || outcome.has_failed;
            ASSERT_NO_FATAL_FAILURE(check(outcome));
            if (HasFailure()) return;
            if (!outcome.errors.contains("")) ++told;
          }
          if (!has_failed) break;
        }
  EXPECT_GT(told, 50U);
}

// ---- as users call it

struct Trained {
  Trained(comm::Communicator& comm, float value)
      : layout(ParameterLayout::of({{"w", {5}}, {"v", {1030}}})),
        params(layout.size(), value),
        optimizer(comm,
                  std::make_unique<optim::Adam>(layout, optim::AdamOptions{})),
        training{.comm = comm,
                 .layout = layout,
                 .params = params,
                 .optimizer = optimizer,
                 .step = 1} {}

  const ParameterLayout layout;
  std::vector<float> params;
  optim::DataParallel optimizer;
  Training training;
};

// Ranks of one process as if each were a host: their directories have names of
// their own, where those of hosts have one.
TEST(NodeLocal, CopiedTogetherItLoadsAndBeforeThatItSaysWhatIsMissing) {
  const test::ScopedVariable alone("THINWIRE_RANKS_PER_HOST", "1");
  const test::Folder folder;
  const auto root_of = [&](int rank) {
    return folder.in(fmt::format("host{}", rank));
  };
  test::on_ranks(2, [&](comm::Communicator& comm) {
    Trained run(comm, 0.5f);
    run.optimizer.step(run.params, std::vector<float>(run.params.size(), 1));
    const std::string root = root_of(comm.rank());
    for (run.training.step = 1; run.training.step <= 2; ++run.training.step)
      save(run.training, root, {}, {.storage = Storage::kNodeLocal});
    comm.barrier();
    Trained other(comm, 0);
    expect_error(ErrorCode::kUnavailable,
                 {"rank 0: ",
                  "state-00002-of-00002.safetensors: it is missing "
                  "on host ",
                  "copy the hosts' directories into one"},
                 [&] { static_cast<void>(resume(other.training, root)); });
    EXPECT_EQ(other.params, std::vector<float>(other.params.size(), 0));
    comm.barrier();
    if (comm.rank() == 0)
      std::filesystem::copy(root_of(1), root_of(0),
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::skip_existing);
    comm.barrier();
    EXPECT_EQ(load(other.training, root_of(0)).step, 2);
    EXPECT_EQ(other.params, run.params);
  });
}

}  // namespace
}  // namespace thinwire::checkpoint::node_local_test
