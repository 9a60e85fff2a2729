// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <sstream>

#include "checkpoint/commit/find_checkpoints.h"
#include "comm/host_name.h"
#include "comm/ranks_of_hosts.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {
namespace {

bool is_whole(FileSystem& files, const std::string& path, std::uint64_t bytes) {
  if (!files.exists(path)) return false;
  const FileInfo info = files.stat(path);
  return info.kind == FileInfo::Kind::kFile && info.bytes == bytes;
}

// Returns a line for each complete file of the checkpoints in parts: the
// checkpoint's id, its number of files, and the file's name.
std::string files_here(const RootDirectory& root) {
  std::string lines;
  for (const FoundCheckpoint& found : find_checkpoints(root.files, root.path)) {
    const Manifest& manifest = found.manifest;
    if (!is_in_parts(manifest)) continue;
    for (const SavedFile& file : manifest.files)
      if (is_whole(root.files, root.in(found.name) + '/' + file.name,
                   file.bytes))
        lines += fmt::format("{} {} {}\n", manifest.id, manifest.files.size(),
                             file.name);
  }
  return lines;
}

}  // namespace

std::string broadcast_text(comm::Communicator& comm, const std::string& text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  comm.broadcast(View(&bytes, 1, DType::kInt64), 0);
  std::string all = text;
  all.resize(static_cast<std::size_t>(bytes));
  comm.broadcast(View(all.data(), all.size(), DType::kUInt8), 0);
  return all;
}

std::uint64_t sum_over_ranks(comm::Communicator& comm, std::uint64_t own) {
  auto sum = static_cast<std::int64_t>(own);
  comm.all_reduce(View(&sum, 1, DType::kInt64));
  return static_cast<std::uint64_t>(sum);
}

void everywhere(comm::Communicator& comm, const std::function<void()>& body) {
  std::int32_t status = 0;  // After an error 1 + the code
  std::string text;
  const auto failed = [&](ErrorCode code, const std::exception& error) {
    status = 1 + static_cast<std::int32_t>(code);
    text = error.what();
  };
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommFailure)
      throw;  // Other ranks cannot
              // be reached.
    failed(error.code(), error);
  } catch (const std::exception& error) {
    failed(ErrorCode::kFailedPrecondition, error);
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(ConstView(&status, 1, DType::kInt32), all);
  const auto first =
      std::find_if(all.begin(), all.end(), [](auto s) { return s != 0; });
  if (first == all.end()) return;
  const auto rank = static_cast<std::size_t>(first - all.begin());
  throw Error(static_cast<ErrorCode>(*first - 1),
              fmt::format("rank {}: {}", rank, gather_texts(comm, text)[rank]));
}

Directories find_directories(comm::Communicator& comm, Storage storage) {
  Directories all;
  all.leaders.resize(static_cast<std::size_t>(comm.size()));
  all.hosts = gather_texts(comm, comm::host_name());
  if (storage == Storage::kShared) return all;
  for (const std::vector<int>& host : comm::ranks_of_hosts(comm))
    for (const int rank : host)
      all.leaders[static_cast<std::size_t>(rank)] = host.front();
  return all;
}

std::set<std::string> find_in_parts(comm::Communicator& comm,
                                    const RootDirectory& root, bool leads) {
  std::string lines;
  everywhere(comm, [&] {
    if (leads) lines = files_here(root);
  });
  struct Files {
    std::size_t count = 0;
    std::set<std::string> names{};
  };
  std::map<std::string, Files> by_id;
  for (const std::string& text : gather_texts(comm, lines)) {
    std::istringstream words(text);
    std::string id;
    std::string name;
    for (std::size_t count = 0; words >> id >> count >> name;) {
      by_id[id].count = count;
      by_id[id].names.insert(name);
    }
  }
  std::set<std::string> whole;
  for (const auto& [id, files] : by_id)
    if (files.names.size() == files.count) whole.insert(id);
  return whole;
}

}  // namespace thinwire::checkpoint
