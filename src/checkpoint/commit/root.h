// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/commit/directories.h"
#include "checkpoint/disk/file_system.h"
#include "checkpoint/disk/keep_looking.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// A file that this rank writes.
struct PlannedFile {
  /// Writes bytes [offset, offset + to.size()) of the header's tensor `tensor`.
  using Read = std::function<void(std::size_t tensor, std::uint64_t offset,
                                  std::span<std::byte> to)>;

  std::string name;
  SafetensorsHeader header;
  Read read;
  std::vector<std::pair<std::string, std::string>> tensors{};  ///< SavedFile's
};

/// An entry of a directory of checkpoints, as one rank found it.
struct FoundCheckpoint {
  std::string name;       ///< Name of the directory.
  bool complete = false;  ///< It has a manifest that verifies itself, and files
                          ///< of the sizes that it lists.
  std::string problem{};  ///< Why it is not.
  /// The problem is that it cannot be read just now: it may be complete.
  bool unreadable = false;
  Manifest manifest{};  ///< Set if complete.
};
/// Newest first, by save_index; those that are not complete last. Local;
/// changes nothing.
[[nodiscard]] std::vector<FoundCheckpoint> find_checkpoints(
    FileSystem& files, const std::string& root);

/// The directory into which one run writes its checkpoints, and the protocol
/// that makes each checkpoint appear whole or not at all. If hosts have
/// directories of their own under that path, each host's lowest rank acts there
/// as rank 0 does. All manifests are the same. Every call is collective over
/// `comm`, and rank 0 decides. An error of one rank is thrown on all: "rank 1:
/// PATH: No space left on device".
class Root {
 public:
  struct Options {
    bool durable = true;
    Storage storage = Storage::kShared;
    /// Tests' own; empty: found out.
    Directories directories{};
    /// How long a rank looks for what rank 0 has just made.
    std::chrono::milliseconds patience = kPatience;
    /// For `written` in the manifest, which decides nothing.
    std::function<std::chrono::system_clock::time_point()> clock =
        std::chrono::system_clock::now;
  };

  /// Makes the directory, locks it on rank 0 for the lifetime of this object,
  /// and tidies leftovers of a crash. Partial directories with a valid manifest
  /// are adopted. Others of this `run` (32 hexadecimal digits, known to rank 0)
  /// are removed. Throws Error(kFailedPrecondition), which names the host and
  /// process that hold the lock, and Error(kUnavailable).
  Root(FileSystem& files, comm::Communicator& comm, std::string path,
       std::string run, const Options& options);
  ~Root();

  struct Contents {
    std::vector<PlannedFile> files{};  ///< This rank's.
    /// Rank 0's: everything but id, run, save_index, written, library, durable
    /// and files, which are filled in here.
    Manifest manifest{};
    std::vector<Attachment> attachments{};  ///< Rank 0's.
    Progress progress{};                    ///< Rank 0's.
  };
  struct Committed {
    std::string path;
    std::uint64_t bytes = 0;
    std::int64_t save_index = 0;
  };
  /// Returns the bytes of all ranks' files. Collective.
  [[nodiscard]] std::uint64_t total_bytes(const Contents& contents) const;
  /// ROOT/step-<manifest.step>; one that is there is replaced.
  Committed write(Contents contents);

  /// Removes what `which` does not keep: of this run only, never `loaded_from`
  /// (a name in this directory) until two newer ones are complete.
  void retain(const Retention& which, const std::string& loaded_from);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collective: every rank's text, in rank order.
using comm::gather_texts;
/// Collective: rank 0's text.
[[nodiscard]] std::string broadcast_text(comm::Communicator& comm,
                                         const std::string& text);
/// Collective.
[[nodiscard]] std::uint64_t sum_over_ranks(comm::Communicator& comm,
                                           std::uint64_t own);
/// Collective: calls `body` on every rank; where it threw on one, all throw the
/// lowest one's Error, with "rank R: " in front.
void everywhere(comm::Communicator& comm, const std::function<void()>& body);
/// Local: 32 hexadecimal digits that nobody else has.
[[nodiscard]] std::string random_id();

}  // namespace thinwire::checkpoint
