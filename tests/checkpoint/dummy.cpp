// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dummy.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "checkpoint/format/manifest.h"
#include "thinwire/core/checksum.h"

namespace thinwire::test {
namespace {

using checkpoint::PlannedFile;
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

std::vector<std::byte> read_all(checkpoint::FileSystem& files,
                                const std::string& path) {
  const auto file = files.open(path, false);
  std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
  bytes.resize(file->read_at(0, bytes));
  return bytes;
}

std::vector<std::byte> expected_bytes(const std::string& name,
                                      std::int64_t tag) {
  std::string text;
  if (name == "config.json") {
    text = attachment_of(tag);
  } else {
    const PlannedFile file = planned(name, tag);
    text = checkpoint::write_header(file.header);
    for (std::uint64_t at = text.size(); at < file.header.file_bytes; ++at)
      text.push_back(static_cast<char>(dummy_byte(name, tag, at)));
  }
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string problem_of(const SavedFile& saved, std::int64_t tag,
                       const std::vector<std::byte>& bytes) {
  if (bytes != expected_bytes(saved.name, tag))
    return saved.name + " has other bytes";
  for (std::size_t chunk = 0; chunk < saved.chunk_hashes.size(); ++chunk) {
    const std::size_t begin = chunk * checkpoint::kChunkBytes;
    const std::size_t size =
        std::min<std::size_t>(checkpoint::kChunkBytes, bytes.size() - begin);
    if (checksum(ConstView(bytes.data() + begin, size, DType::kUInt8)) !=
        saved.chunk_hashes[chunk])
      return saved.name + " has another hash";
  }
  return {};
}

}  // namespace

std::byte dummy_byte(const std::string& file, std::int64_t tag,
                     std::uint64_t offset) {
  return static_cast<std::byte>(file.size() * 31 + file[file.size() / 2] +
                                static_cast<std::uint64_t>(tag) * 101 +
                                offset * 7 + 1);
}

DummyContents::DummyContents(int rank, int world, const Dummy& dummy)
    : world_(world), dummy_(dummy) {
  files_.push_back(
      planned(fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, world),
              dummy.tag));
  if (rank != 0) return;
  files_.push_back(planned("model.safetensors", dummy.tag));
  attachments_.push_back({"config.json", attachment_of(dummy.tag)});
}

checkpoint::Root::Contents DummyContents::contents() const {
  checkpoint::Root::Contents contents;
  contents.files = files_;
  contents.attachments = attachments_;
  checkpoint::Manifest& manifest = contents.manifest;
  manifest.step = dummy_.step;
  manifest.world = world_;
  manifest.optimizer = "dummy";
  manifest.semantics = "corrected";
  manifest.precision = "fp32";
  manifest.scalars.put_integer("tag", dummy_.tag);
  manifest.scalars_of_ranks.resize(static_cast<std::size_t>(world_));
  manifest.extra_of_ranks.resize(static_cast<std::size_t>(world_));
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
    const std::string problem = problem_of(
        saved, *loaded.tag,
        read_all(files, root + "/" + newest.name + "/" + saved.name));
    if (!problem.empty()) loaded.problem = problem;
  }
  return loaded;
}

checkpoint::Root::Committed save_dummy(checkpoint::FileSystem& files,
                                       comm::Communicator& comm,
                                       const std::string& root,
                                       const Dummy& dummy,
                                       const std::string& run) {
  checkpoint::Root directory(files, comm, root, run, quick_options());
  const DummyContents contents(comm.rank(), comm.size(), dummy);
  return directory.write(contents.contents());
}

checkpoint::Root::Options quick_options() {
  checkpoint::Root::Options options;
  options.patience = std::chrono::milliseconds(20);
  return options;
}

}  // namespace thinwire::test
