// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/ranks.h"
#include "checkpoint/commit/write_file.h"
#include "checkpoint/disk/file_system.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// The directory into which one run writes its checkpoints, and the protocol
/// that makes each checkpoint appear completely or not at all. If every host
/// has its own directory under that path, the lowest rank of each host acts
/// there as rank 0 does. All manifests are the same. Every call is collective
/// over `comm`, and rank 0 decides. An error of one rank is thrown on all
/// ranks, for example "rank 1: PATH: No space left on device".
class Root {
 public:
  struct Options {
    bool durable = true;
    Storage storage = Storage::kShared;
    /// If empty, they are determined from `storage`. Tests set them.
    Directories directories{};
    /// Time for which a rank waits to see a file that rank 0 has just made.
    std::chrono::milliseconds patience = kPatience;
    /// Time for `written` in the manifest, which is only information.
    std::function<std::chrono::system_clock::time_point()> clock =
        std::chrono::system_clock::now;
  };

  /// Makes the directory, locks it on rank 0 for the lifetime of this object,
  /// and tidies the remains of a crash. Partial directories with a valid
  /// manifest are adopted. Other partial directories of this `run` (32
  /// hexadecimal digits on rank 0) are removed. Throws
  /// Error(kFailedPrecondition), which names the host and the process that hold
  /// the lock, and Error(kUnavailable).
  Root(FileSystem& files, comm::Communicator& comm, std::string path,
       std::string run, const Options& options);
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  struct Contents {
    std::vector<PlannedFile> files{};  ///< Files of this rank.
    /// Manifest on rank 0. write() fills in id, run, save_index, written,
    /// library, durable and files.
    Manifest manifest{};
    std::vector<Attachment> attachments{};  ///< On rank 0.
    Progress progress{};                    ///< On rank 0.
  };
  struct Committed {
    std::string path;
    std::uint64_t bytes = 0;
    std::int64_t save_index = 0;
  };
  /// Returns the bytes of all ranks' files. Collective.
  [[nodiscard]] std::uint64_t total_bytes(const Contents& contents) const;
  /// Writes ROOT/step-<manifest.step>, and replaces an existing checkpoint of
  /// that name.
  Committed write(Contents contents);

  /// Removes the checkpoints of this run that `which` does not keep.
  /// `loaded_from`, a name in this directory, stays until two newer ones are
  /// complete.
  void retain(const Retention& which, const std::string& loaded_from);

 private:
  // Rank 0's message to the others before a checkpoint is written.
  struct Announcement {
    std::string partial;  // directory in ROOT
    std::int64_t step = 0;
    std::int64_t save_index = 0;
  };
  using Body = std::function<void()>;

  [[nodiscard]] bool decides() const { return comm_.rank() == 0; }
  [[nodiscard]] int leader_of(int rank) const {
    return directories_.leaders[static_cast<std::size_t>(rank)];
  }
  // Returns whether this rank makes the directory that it writes into.
  [[nodiscard]] bool leads() const {
    return leader_of(comm_.rank()) == comm_.rank();
  }
  [[nodiscard]] bool is_shared() const {
    return options_.storage == Storage::kShared;
  }
  [[nodiscard]] const std::string& host_of(int rank) const {
    return directories_.hosts[static_cast<std::size_t>(rank)];
  }
  // Runs `body` on rank 0, or on the leaders. If it throws there, all ranks
  // throw. Collective.
  void on_rank_0(const Body& body);
  void on_leaders(const Body& body);

  void open();
  void find_parts();
  void look_for_newest();
  [[nodiscard]] std::vector<std::uint64_t> bytes_of_ranks(
      const Contents& contents) const;
  void require_space(const std::vector<std::uint64_t>& of_ranks) const;
  [[nodiscard]] Announcement announce(const Contents& contents);
  [[nodiscard]] std::string probe(const Announcement& made) const;
  void wait_for_probe(const Announcement& made) const;
  [[nodiscard]] std::vector<SavedFile> write_files(const Contents& contents,
                                                   const Announcement& made,
                                                   std::uint64_t total);
  void fill_in(Manifest& manifest, const Announcement& made) const;
  void commit_in_parts(Manifest& manifest, Announcement& made);
  void write(Contents& contents, Announcement& made,
             const std::vector<std::uint64_t>& bytes);
  void clean_up(const Announcement& made) const noexcept;

  comm::Communicator& comm_;
  RootDirectory root_;
  Options options_;
  Directories directories_;
  std::unique_ptr<FileSystem::Lock> lock_{};
  std::int64_t save_index_ = 0;  // of the last save
  std::int64_t index_at_start_ = 0;
};

}  // namespace thinwire::checkpoint
