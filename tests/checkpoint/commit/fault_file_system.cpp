// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/fault_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire::test {
namespace {

constexpr int kNone = FaultDisk::kNone;
using Random = std::mt19937_64;
using Names = std::map<std::string, int>;

void set_names(const FaultDisk::Change& change, Names& names) {
  for (const auto& [name, node] : change.names) {
    if (node == FaultDisk::kNone) {
      names.erase(name);
    } else {
      names[name] = node;
    }
  }
}

// A later change of a name that is durable makes earlier ones void.
void forget(const FaultDisk::Change& durable,
            std::vector<FaultDisk::Change>& earlier) {
  for (const auto& [name, node] : durable.names) {
    for (FaultDisk::Change& change : earlier) {
      std::erase_if(change.names,
                    [&](const auto& one) { return one.first == name; });
    }
  }
}

// Returns the file as synced, whole, cut, or with zeros at its end.
std::vector<std::byte> some_of(const FaultDisk::Node& file, Random& random) {
  if (file.bytes == file.synced_bytes) return file.bytes;
  std::vector<std::byte> bytes = file.bytes;
  const std::size_t kept = random() % (bytes.size() + 1);
  switch (random() % 4) {
    case 0:
      return file.synced_bytes;
    case 1:
      return bytes;
    case 2:
      bytes.resize(kept);
      return bytes;
    default:
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(kept), bytes.end(),
                std::byte{0});
      return bytes;
  }
}

Names some_of(const FaultDisk::Node& directory, Loss loss, Random& random) {
  if (loss == Loss::kAll) return directory.synced_names;
  if (loss != Loss::kSomeNames) return directory.names;
  Names names = directory.synced_names;
  for (const FaultDisk::Change& change : directory.unsynced)
    if (random() % 2 == 0) set_names(change, names);
  return names;
}

[[noreturn]] void fail(const std::string& path, int number) {
  throw Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: {}", path, std::generic_category().message(number)));
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.find_last_of('/'));
}
std::string last_of(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

Sync kind_of_file(const std::string& path) {
  if (path.ends_with("manifest.json.tmp")) return Sync::kManifest;
  return path.ends_with("latest.tmp") ? Sync::kLatest : Sync::kData;
}

Sync kind_of_directory(const FaultDisk::Node& node, const std::string& path) {
  if (path.find(".partial-") != std::string::npos) {
    return node.names.count("manifest.json") > 0 ? Sync::kManifestsName
                                                 : Sync::kRanksDirectory;
  }
  return node.names.count(".lock") > 0 ? Sync::kRoot : Sync::kParentsDirectory;
}

}  // namespace

int FaultDisk::find(const std::string& path) const {
  int node = kTop;
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty()) continue;
    const Names& names = nodes_[static_cast<std::size_t>(node)].names;
    const auto found = names.find(part);
    if (found == names.end()) return kNone;
    node = found->second;
  }
  return node;
}

int FaultDisk::add(bool is_directory) {
  nodes_.push_back({.is_directory = is_directory});
  return static_cast<int>(nodes_.size()) - 1;
}

void FaultDisk::change(int directory, Change change) {
  set_names(change, at(directory).names);
  at(directory).unsynced.push_back(std::move(change));
}

void FaultDisk::sync_names(int directory, int rank) {
  Node& node = at(directory);
  std::vector<Change> others;
  for (const Change& change : node.unsynced) {
    if (change.rank != rank) {
      others.push_back(change);
      continue;
    }
    set_names(change, node.synced_names);
    forget(change, others);
  }
  node.unsynced = std::move(others);
}

FaultDisk FaultDisk::after_power_cut(Loss loss, std::uint64_t seed) const {
  Random random(seed);
  FaultDisk left = *this;
  for (Node& node : left.nodes_) {
    if (loss == Loss::kAll) {
      node.bytes = node.synced_bytes;
    } else if (loss != Loss::kNothing) {
      node.bytes = some_of(node, random);
    }
    node.names = some_of(node, loss, random);
    node.synced_bytes = node.bytes;
    node.synced_names = node.names;
    node.unsynced.clear();
  }
  return left;
}

// One call: nobody else has the disk; it is logged, counted and may fail.
class FaultFileSystem::Operation {
 public:
  enum class Kind { kLooks, kChanges };

  Operation(FaultFileSystem& files, int rank, const char* name,
            const std::string& path, Kind kind = Kind::kChanges)
      : files_(files), lock_(files.mutex_), kind_(kind) {
    files_.log_.push_back(fmt::format("{} {} by {}", name, path, rank));
    const std::size_t number = files_.log_.size();
    const Fault& fault = files_.fault_;
    fails_ = fault.operation != 0 && (fault.lasts ? number >= fault.operation
                                                  : number == fault.operation);
    if (!fails_) return;
    files_.has_failed_ = true;
    if (!(fault.writes_half && std::string_view(name) == "write"))
      fail(path, fault.number);
  }
  ~Operation() {
    if (files_.keeps_moments_ && kind_ == Kind::kChanges &&
        std::uncaught_exceptions() == outer_)
      files_.moments_.push_back(files_.disk_);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  [[nodiscard]] bool writes_half() const { return fails_; }

 private:
  FaultFileSystem& files_;
  std::lock_guard<std::mutex> lock_;
  Kind kind_;
  bool fails_ = false;
  int outer_ = std::uncaught_exceptions();
};

class FaultFileSystem::OpenFile final : public checkpoint::File {
 public:
  OpenFile(FaultFileSystem& files, int rank, std::string path, int node)
      : files_(files), rank_(rank), path_(std::move(path)), node_(node) {}

  void allocate(std::uint64_t bytes) override {
    const Operation operation(files_, rank_, "allocate", path_);
    grow(bytes);
  }
  void write_at(std::uint64_t offset,
                std::span<const std::byte> bytes) override {
    const Operation operation(files_, rank_, "write", path_);
    if (operation.writes_half()) bytes = bytes.first(bytes.size() / 2);
    grow(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(),
              node().bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    if (operation.writes_half()) fail(path_, files_.fault_.number);
  }
  std::size_t read_at(std::uint64_t offset,
                      std::span<std::byte> bytes) override {
    const Operation operation(files_, rank_, "read", path_,
                              Operation::Kind::kLooks);
    const std::span<const std::byte> all(node().bytes);
    if (offset >= all.size()) return 0;
    const auto part = all.subspan(static_cast<std::size_t>(offset));
    const std::size_t count = std::min(part.size(), bytes.size());
    std::copy_n(part.begin(), count, bytes.begin());
    return count;
  }
  void write_back(std::uint64_t, std::uint64_t) override {}
  std::uint64_t size() override {
    const Operation operation(files_, rank_, "size", path_,
                              Operation::Kind::kLooks);
    return node().bytes.size();
  }
  void sync() override {
    const Operation operation(files_, rank_, "sync", path_);
    if (files_.ignored_.count(kind_of_file(path_)) == 0)
      node().synced_bytes = node().bytes;
  }
  void close() override {
    const Operation operation(files_, rank_, "close", path_);
  }

 private:
  FaultDisk::Node& node() { return files_.disk_.at(node_); }
  void grow(std::uint64_t bytes) {
    if (node().bytes.size() < bytes)
      node().bytes.resize(static_cast<std::size_t>(bytes));
  }

  FaultFileSystem& files_;
  int rank_;
  std::string path_;
  int node_;
};

class FaultFileSystem::HeldLock final : public checkpoint::FileSystem::Lock {
 public:
  HeldLock(FaultFileSystem& files, std::string path)
      : files_(files), path_(std::move(path)) {}
  ~HeldLock() override {
    const std::lock_guard lock(files_.mutex_);
    files_.locks_.erase(path_);
  }

 private:
  FaultFileSystem& files_;
  std::string path_;
};

class FaultFileSystem::OfRank final : public checkpoint::FileSystem {
 public:
  OfRank(FaultFileSystem& files, int rank) : files_(files), rank_(rank) {}

  std::unique_ptr<checkpoint::File> create(const std::string& path) override {
    const Operation operation(files_, rank_, "create", path);
    if (disk().find(path) != kNone) fail(path, EEXIST);
    const int node = disk().add(false);
    name(path, node);
    return std::make_unique<OpenFile>(files_, rank_, path, node);
  }
  std::unique_ptr<checkpoint::File> open(const std::string& path,
                                         bool) override {
    const Operation operation(files_, rank_, "open", path, kLooks);
    const int node = existing(path);
    if (disk().at(node).is_directory) fail(path, EISDIR);
    return std::make_unique<OpenFile>(files_, rank_, path, node);
  }
  bool exists(const std::string& path) override {
    const Operation operation(files_, rank_, "exists", path, kLooks);
    Hidden& hidden = files_.hidden_;
    if (hidden.rank == rank_ && hidden.calls > 0 &&
        path.ends_with(hidden.ending)) {
      --hidden.calls;
      return false;
    }
    return disk().find(path) != kNone;
  }
  checkpoint::FileInfo stat(const std::string& path) override {
    const Operation operation(files_, rank_, "stat", path, kLooks);
    using Kind = checkpoint::FileInfo::Kind;
    const FaultDisk::Node& node = disk().at(existing(path));
    return {node.is_directory ? Kind::kDirectory : Kind::kFile,
            node.bytes.size()};
  }
  std::vector<std::string> list(const std::string& path) override {
    const Operation operation(files_, rank_, "list", path, kLooks);
    std::vector<std::string> names;
    for (const auto& [name, node] : directory(path).names)
      names.push_back(name);
    return names;
  }
  void make_directories(const std::string& path) override {
    const Operation operation(files_, rank_, "mkdir -p", path);
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (disk().find(part) == kNone) name(part, disk().add(true));
      if (end == std::string::npos) break;
    }
    if (!disk().at(existing(path)).is_directory) fail(path, ENOTDIR);
  }
  void make_directory(const std::string& path) override {
    const Operation operation(files_, rank_, "mkdir", path);
    if (disk().find(path) != kNone) fail(path, EEXIST);
    name(path, disk().add(true));
  }
  void rename(const std::string& from, const std::string& to) override {
    const Operation operation(files_, rank_, "rename", from);
    if (parent_of(from) != parent_of(to))
      throw std::logic_error("rename from one directory to another");
    const int node = existing(from);
    if (disk().at(node).is_directory && disk().find(to) != kNone)
      fail(to, EEXIST);
    disk().change(existing(parent_of(from)),
                  {rank_, {{last_of(from), kNone}, {last_of(to), node}}});
  }
  void remove_file(const std::string& path) override {
    const Operation operation(files_, rank_, "unlink", path);
    if (disk().at(existing(path)).is_directory) fail(path, EISDIR);
    name(path, kNone);
  }
  void remove_directory(const std::string& path) override {
    const Operation operation(files_, rank_, "rmdir", path);
    if (!directory(path).names.empty()) fail(path, ENOTEMPTY);
    name(path, kNone);
  }
  void sync_directory(const std::string& path) override {
    const Operation operation(files_, rank_, "sync directory", path);
    if (files_.ignored_.count(kind_of_directory(directory(path), path)) == 0)
      disk().sync_names(existing(path), rank_);
  }
  std::uint64_t free_bytes(const std::string& path) override {
    const Operation operation(files_, rank_, "free", path, kLooks);
    return files_.free_bytes_;
  }
  void wait(std::chrono::milliseconds pause) override {
    std::function<void(int rank)> waiting;
    {
      const std::lock_guard lock(files_.mutex_);
      files_.waited_ += pause;
      waiting = files_.waiting_;
    }
    if (waiting) waiting(rank_);
  }
  std::unique_ptr<Lock> lock(const std::string& path,
                             const std::string& owner) override {
    const Operation operation(files_, rank_, "lock", path);
    const auto held = files_.locks_.find(path);
    if (held != files_.locks_.end()) {
      throw Error(
          ErrorCode::kFailedPrecondition,
          fmt::format("{}: {} writes checkpoints here", path, held->second));
    }
    if (disk().find(path) == kNone) name(path, disk().add(false));
    files_.locks_[path] = owner;
    return std::make_unique<HeldLock>(files_, path);
  }

 private:
  static constexpr auto kLooks = Operation::Kind::kLooks;

  FaultDisk& disk() { return files_.disk_; }
  int existing(const std::string& path) {
    const int node = disk().find(path);
    if (node == kNone) fail(path, ENOENT);
    return node;
  }
  FaultDisk::Node& directory(const std::string& path) {
    FaultDisk::Node& node = disk().at(existing(path));
    if (!node.is_directory) fail(path, ENOTDIR);
    return node;
  }
  void name(const std::string& path, int node) {
    directory(parent_of(path));
    disk().change(existing(parent_of(path)), {rank_, {{last_of(path), node}}});
  }

  FaultFileSystem& files_;
  int rank_;
};

FaultFileSystem::FaultFileSystem(int ranks, FaultDisk disk)
    : disk_(std::move(disk)) {
  for (int rank = 0; rank < ranks; ++rank)
    ranks_.push_back(std::make_unique<OfRank>(*this, rank));
}

FaultFileSystem::~FaultFileSystem() = default;

checkpoint::FileSystem& FaultFileSystem::of_rank(int rank) {
  return *ranks_.at(static_cast<std::size_t>(rank));
}

}  // namespace thinwire::test
