// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/fault_disk.h"

#include <algorithm>
#include <random>
#include <sstream>

namespace thinwire::test {
namespace {

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

// As synced, whole, cut, or of full length with zeros at its end.
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

}  // namespace thinwire::test
