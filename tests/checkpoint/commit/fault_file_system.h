// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/disk/file_system.h"

namespace thinwire::test {

/// Part of the unsynced data that survives a power cut.
enum class Loss {
  kAll,
  kNothing,
  kCutFiles,   ///< Names are there, files end anywhere, or in zeros.
  kSomeNames,  ///< Any of the changes of names, and files as above.
};

/// A disk, which knows what is durable: a file's bytes by fsync of the file,
/// names by fsync of their directory. A rank's fsync of a directory makes its
/// own changes durable and nobody else's, as a client of a network file system
/// knows only of its own. A value: a copy is the disk at that moment.
class FaultDisk {
 public:
  static constexpr int kNone = -1;
  static constexpr int kTop = 0;  ///< "/"

  /// Changes names of a directory, all or none of them.
  struct Change {
    int rank = 0;
    std::vector<std::pair<std::string, int>> names{};  ///< kNone: removed.
  };
  struct Node {
    bool is_directory = false;
    std::vector<std::byte> bytes{}, synced_bytes{};
    std::map<std::string, int> names{}, synced_names{};
    std::vector<Change> unsynced{};
  };

  FaultDisk() : nodes_(1, Node{.is_directory = true}) {}

  [[nodiscard]] Node& at(int node) {
    return nodes_[static_cast<std::size_t>(node)];
  }
  /// kNone where nothing is.
  [[nodiscard]] int find(const std::string& path) const;
  [[nodiscard]] int add(bool is_directory);
  void change(int directory, Change change);
  void sync_names(int directory, int rank);

  /// Returns the disk that the next start finds.
  [[nodiscard]] FaultDisk after_power_cut(Loss loss, std::uint64_t seed) const;

 private:
  std::vector<Node> nodes_;
};

/// The fsyncs of the protocol.
enum class Sync {
  kData,             ///< Of a rank's file.
  kRanksDirectory,   ///< Of the partial directory, by each rank.
  kManifest,         ///< Of manifest.json.tmp.
  kManifestsName,    ///< Of the partial directory, once it has a manifest.
  kLatest,           ///< Of latest.tmp.
  kRoot,             ///< Of ROOT.
  kParentsDirectory  ///< Of what ROOT was made in.
};

/// A file system in memory for ranks that are threads. It counts operations
/// from 1 on and can let one fail, forget syncs, and keep the disk as it was
/// after every change.
class FaultFileSystem {
 public:
  explicit FaultFileSystem(int ranks, FaultDisk disk = {});
  ~FaultFileSystem();

  [[nodiscard]] checkpoint::FileSystem& of_rank(int rank);

  struct Fault {
    std::size_t operation = 0;  ///< Which one fails; 0: none.
    int number = 0;             ///< errno
    bool writes_half = false;   ///< If it is a write.
    bool lasts = false;         ///< All later ones too.
  };
  void set_fault(const Fault& fault) {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    log_.clear();
    has_failed_ = false;
  }
  [[nodiscard]] bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return has_failed_;
  }

  void ignore(Sync kind) {
    const std::lock_guard lock(mutex_);
    ignored_.insert(kind);
  }
  void set_free_bytes(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    free_bytes_ = bytes;
  }
  /// `exists` does not see names that end like this, for so many calls of a
  /// rank.
  void hide(int rank, const std::string& ending, int calls) {
    const std::lock_guard lock(mutex_);
    hidden_ = {rank, ending, calls};
  }

  /// Called when a rank waits, which takes no time here.
  void set_waiting(std::function<void(int rank)> waiting) {
    const std::lock_guard lock(mutex_);
    waiting_ = std::move(waiting);
  }
  /// Returns the time that all ranks have waited.
  [[nodiscard]] std::chrono::milliseconds waited() const {
    const std::lock_guard lock(mutex_);
    return waited_;
  }

  [[nodiscard]] std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  [[nodiscard]] FaultDisk disk() const {
    const std::lock_guard lock(mutex_);
    return disk_;
  }
  /// From now on keep the disk as it is after every change.
  void keep_moments() {
    const std::lock_guard lock(mutex_);
    keeps_moments_ = true;
  }
  [[nodiscard]] std::vector<FaultDisk> take_moments() {
    const std::lock_guard lock(mutex_);
    return std::exchange(moments_, {});
  }

 private:
  class OfRank;
  class OpenFile;
  class HeldLock;
  class Operation;

  mutable std::mutex mutex_;
  FaultDisk disk_;
  std::vector<std::unique_ptr<OfRank>> ranks_;
  std::vector<std::string> log_;
  std::vector<FaultDisk> moments_;
  Fault fault_{};
  bool has_failed_ = false;
  bool keeps_moments_ = false;
  std::set<Sync> ignored_;
  std::map<std::string, std::string> locks_;  // by path; owners
  std::uint64_t free_bytes_ = std::uint64_t{1} << 40;
  std::function<void(int rank)> waiting_;
  std::chrono::milliseconds waited_{0};
  struct Hidden {
    int rank = 0;
    std::string ending{};
    int calls = 0;
  } hidden_{};
};

}  // namespace thinwire::test
