// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/await_files.h"

#include <fmt/format.h>

#include <string>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/root.h"
#include "checkpoint/disk/keep_looking.h"
#include "comm/host_name.h"

namespace thinwire::checkpoint {

namespace {

std::uint64_t bytes_of(FileSystem& files, const std::string& path) {
  return files.exists(path) ? files.stat(path).bytes : 0;
}

void await_own(FileSystem& files, const Found& found, int rank) {
  auto next = found.manifest.files.begin();
  const auto path = [&] { return found.path + "/" + next->name; };
  const auto all_are_there = [&] {
    while (next != found.manifest.files.end() && files.exists(path()) &&
           bytes_of(files, path()) >= next->bytes)
      ++next;
    return next == found.manifest.files.end();
  };
  if (keep_looking(files, kPatience, all_are_there)) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: rank {} on host {} sees {} of {} bytes, rank 0 "
                          "saw all: it was removed while it was being opened "
                          "(check keep_last), or its directory is not shared",
                          path(), rank, comm::host_name(),
                          bytes_of(files, path()), next->bytes));
}

}  // namespace

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
