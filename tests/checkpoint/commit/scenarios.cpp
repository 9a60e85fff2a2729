// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/scenarios.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "checkpoint/format/manifest.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/tiny_checkpoint.h"
#include "support/ranks.h"

namespace thinwire::test {
namespace {

using checkpoint::PlannedFile;
using checkpoint::Root;
using checkpoint::SavedFile;
using checkpoint::TensorEntry;

PlannedFile planned(const std::string& name, std::int64_t tag) {
  PlannedFile file{.name = name, .header = {}, .read = {}};
  file.header = checkpoint::place_tensors(
      {TensorEntry{.name = "b", .type = {DType::kUInt8}, .shape = {7}},
       TensorEntry{.name = "none", .type = {DType::kFloat32}, .shape = {0}},
       TensorEntry{.name = "w", .type = {DType::kFloat32}, .shape = {3, 11}}},
      {{"format", "pt"}});
  const auto tensors = file.header.tensors;
  file.read = [name, tag, tensors](std::size_t tensor, std::uint64_t offset,
                                   std::span<std::byte> to) {
    for (std::byte& byte : to)
      byte = dummy_byte(name, tag, tensors.at(tensor).begin + offset++);
  };
  return file;
}

std::string attachment_of(std::int64_t tag) {
  return fmt::format("{{\"tag\": {}}}", tag);
}

std::string expected_bytes(const std::string& name, std::int64_t tag) {
  if (name == "config.json") return attachment_of(tag);
  const PlannedFile file = planned(name, tag);
  std::string text = checkpoint::write_header(file.header);
  for (std::uint64_t at = text.size(); at < file.header.file_bytes; ++at)
    text.push_back(static_cast<char>(dummy_byte(name, tag, at)));
  return text;
}

std::string problem_of(const SavedFile& saved, std::int64_t tag,
                       const std::string& bytes) {
  if (bytes != expected_bytes(saved.name, tag))
    return saved.name + " has other bytes";
  if (checkpoint::test::saved_file(saved.name, bytes).chunk_hashes !=
      saved.chunk_hashes)
    return saved.name + " has another hash";
  return {};
}

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

std::byte dummy_byte(const std::string& file, std::int64_t tag,
                     std::uint64_t offset) {
  return static_cast<std::byte>(file.size() * 31 + file[file.size() / 2] +
                                static_cast<std::uint64_t>(tag) * 101 +
                                offset * 7 + 1);
}

checkpoint::Root::Contents dummy_contents(const comm::Communicator& comm,
                                          const Dummy& dummy) {
  checkpoint::Root::Contents contents;
  contents.files.push_back(
      planned(fmt::format("state-{:05}-of-{:05}.safetensors", comm.rank() + 1,
                          comm.size()),
              dummy.tag));
  if (comm.rank() == 0) {
    contents.files.push_back(planned("model.safetensors", dummy.tag));
    contents.attachments.push_back({"config.json", attachment_of(dummy.tag)});
  }
  checkpoint::Manifest& manifest = contents.manifest;
  manifest.step = dummy.step;
  manifest.world = comm.size();
  manifest.optimizer = "dummy";
  manifest.semantics = "corrected";
  manifest.precision = "fp32";
  manifest.scalars.put_integer("tag", dummy.tag);
  const auto world = static_cast<std::size_t>(comm.size());
  manifest.scalars_of_ranks.resize(world);
  manifest.extra_of_ranks.resize(world);
  return contents;
}

LoadedDummy load_dummy(checkpoint::FileSystem& files, const std::string& root) {
  if (!files.exists(root)) return {};
  const auto found = checkpoint::find_checkpoints(files, root);
  if (found.empty() || !found.front().complete) return {};
  const checkpoint::FoundCheckpoint& newest = found.front();
  LoadedDummy loaded{.tag = newest.manifest.scalars.integer("tag")};
  const auto world = static_cast<std::size_t>(newest.manifest.world);
  if (newest.manifest.files.size() != world + 2)
    loaded.problem = "files are missing in the manifest";
  for (const SavedFile& saved : newest.manifest.files) {
    const std::string problem =
        problem_of(saved, *loaded.tag,
                   checkpoint::read_text(
                       files, root + "/" + newest.name + "/" + saved.name,
                       false, checkpoint::kMostManifestBytes));
    if (!problem.empty()) loaded.problem = problem;
  }
  return loaded;
}

std::int64_t newest_tag(checkpoint::FileSystem& files,
                        const std::string& root) {
  const LoadedDummy loaded = load_dummy(files, root);
  EXPECT_EQ(loaded.problem, "");
  return loaded.tag.value_or(-1);
}

void on_ranks(int world, const std::function<void(comm::Communicator&)>& body) {
  run_ranks("local", world, body);
}

checkpoint::Root::Committed save_dummy(checkpoint::FileSystem& files,
                                       comm::Communicator& comm,
                                       const std::string& root,
                                       const Dummy& dummy,
                                       const std::string& run) {
  checkpoint::Root directory(files, comm, root, run, quick_options());
  return directory.write(dummy_contents(comm, dummy));
}

checkpoint::Root::Options quick_options() {
  checkpoint::Root::Options options;
  options.patience = std::chrono::milliseconds(20);
  return options;
}

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
