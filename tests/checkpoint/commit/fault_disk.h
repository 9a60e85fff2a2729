// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace thinwire::test {

/// What is left of that which was not synced when power is cut.
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

}  // namespace thinwire::test
