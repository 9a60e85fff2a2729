// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/found.h"

#include <fmt/format.h>

#include <vector>

#include "checkpoint/commit/root.h"
#include "checkpoint/deepspeed_directory.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "comm/host_name.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

std::uint64_t bytes_at(FileSystem& files, const std::string& path) {
  return files.exists(path) ? files.stat(path).bytes : 0;
}

void await_own(FileSystem& files, const Found& found, int rank) {
  auto next = found.manifest.files.begin();
  const auto path = [&] { return found.path + "/" + next->name; };
  const auto all_are_there = [&] {
    while (next != found.manifest.files.end() && files.exists(path()) &&
           bytes_at(files, path()) >= next->bytes)
      ++next;
    return next == found.manifest.files.end();
  };
  if (keep_looking(files, kPatience, all_are_there)) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: rank {} on host {} sees {} of {} bytes, rank 0 "
                          "saw all: it was removed while it was being opened "
                          "(check keep_last), or its directory is not shared",
                          path(), rank, comm::host_name(),
                          bytes_at(files, path()), next->bytes));
}

bool has_weights(FileSystem& files, const std::string& path) {
  return path.ends_with(".safetensors") ||
         files.exists(path + "/model.safetensors") ||
         files.exists(path + "/model.safetensors.index.json");
}

// Throws because this version cannot use the only checkpoints of a directory. A
// new run must neither begin by mistake nor overwrite them.
[[noreturn]] void refuse_to_begin(const std::string& path,
                                  const FoundCheckpoint& first, int count) {
  if (is_in_parts(first.manifest))
    throw Error(ErrorCode::kUnavailable, first.problem);
  throw Error(
      ErrorCode::kCorruptCheckpoint,
      fmt::format(
          "{}: {}; no checkpoint of this directory can be loaded, {} "
          "found: use the version that wrote it, or repair it; to start "
          "a new run, use another directory or delete {}",
          path, first.problem, count, count == 1 ? "it" : "them"));
}

// Returns whether a crash during a save or a removal may have left this entry.
bool is_remains(const FoundCheckpoint& found) {
  const NameKind kind = kind_of(found.name);
  return kind == NameKind::kPartial || kind == NameKind::kDeleting;
}

// Returns an entry for the result of look(). No path contains the character
// that ends an entry.
constexpr char kEnd = '\0';
std::string entry(std::string_view kind, std::string_view text) {
  return fmt::format("{} {}{}", kind, text, kEnd);
}

// Looks at a directory that may be changing. Only rank 0 calls this, so that
// all ranks get the same result.
std::string look(FileSystem& files, const std::string& path, What what) {
  if (files.exists(path + "/manifest.json")) return entry("ours", path);
  if (!files.exists(path)) return {};
  if (has_weights(files, path)) {
    if (what == What::kWeights) return entry("foreign", path);
    if (files.exists(fmt::format("{}/{}", path, kNamedStates)))
      return entry("states", path);
  }
  std::string complete;
  std::string notes;
  const FoundCheckpoint* unusable = nullptr;  // preferably one in parts
  int count = 0;
  const std::vector<FoundCheckpoint> all = find_checkpoints(files, path);
  require_readable(all);
  for (const FoundCheckpoint& found : all) {
    if (found.complete) {
      complete += entry("ours", fmt::format("{}/{}", path, found.name));
      continue;
    }
    notes += entry("note", fmt::format("{}/{} is left out: {}", path,
                                       found.name, found.problem));
    if (is_remains(found)) continue;
    ++count;
    const bool is_elsewhere = is_in_parts(found.manifest);
    if (unusable == nullptr ||
        (is_elsewhere && !is_in_parts(unusable->manifest)))
      unusable = &found;
  }
  if (complete.empty() && unusable != nullptr)
    refuse_to_begin(path, *unusable, count);
  if (complete.empty()) refuse_deepspeed(files, path);
  return complete + notes;
}

// Returns a manifest for weights in files of any origin. Integer tensors are
// not parameters.
Manifest manifest_of(const Weights& weights) {
  Manifest manifest;
  manifest.semantics = "corrected";
  for (const std::string& name : weights.names()) {
    const TensorEntry& tensor = *weights.find(name);
    const DType dtype = tensor.type.dtype;
    const bool is_float =
        tensor.type.other.empty() &&
        (dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16);
    auto& list = is_float ? manifest.parameters : manifest.others;
    list.push_back({name, tensor.shape, 0, tensor.type});
  }
  return manifest;
}

}  // namespace

std::vector<Found> find_candidates(comm::Communicator& comm, FileSystem& files,
                                   const std::string& path, What what,
                                   std::vector<std::string>& notes) {
  require_path("path", path);
  std::string entries;
  everywhere(comm, [&] {
    if (comm.rank() == 0) entries = look(files, path, what);
  });
  entries = broadcast_text(comm, entries);
  std::vector<Found> candidates;
  for (std::size_t begin = 0; begin < entries.size();) {
    const std::size_t end = entries.find(kEnd, begin);
    const std::string one = entries.substr(begin, end - begin);
    const std::size_t space = one.find(' ');
    const std::string_view kind = std::string_view(one).substr(0, space);
    if (kind == "note")
      notes.push_back(one.substr(space + 1));
    else
      candidates.push_back(
          {one.substr(space + 1), {}, kind != "ours", kind == "states"});
    begin = end + 1;
  }
  return candidates;
}

Found open_candidate(comm::Communicator& comm, FileSystem& files, Found found) {
  const std::string file = found.path + "/manifest.json";
  std::string text;
  if (found.is_foreign) {
    everywhere(comm, [&] {
      found.manifest = manifest_of(Weights(files, found.path));
      if (found.has_states)
        describe_named_states(files, found.path, found.manifest);
    });
    return found;
  }
  everywhere(comm, [&] {
    if (comm.rank() == 0)
      text = read_text(files, file, false, kMostManifestBytes);
  });
  text = broadcast_text(comm, text);
  everywhere(comm, [&] { found.manifest = parse_manifest(text, file); });
  return found;
}

void await_files(comm::Communicator& comm, FileSystem& files,
                 const Found& found) {
  everywhere(comm, [&] {
    if (comm.rank() == 0) require_files(files, found.path, found.manifest);
  });
  everywhere(comm, [&] {
    if (comm.rank() != 0) await_own(files, found, comm.rank());
  });
}

void require_still_there(FileSystem& files, const Found& found,
                         const Error& error) {
  for (const SavedFile& saved : found.manifest.files)
    if (!files.exists(found.path + "/" + saved.name))
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("{}/{}: it was removed while it was being opened "
                              "(check keep_last): {}",
                              found.path, saved.name, error.what()));
}

}  // namespace thinwire::checkpoint
