// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace thinwire::test {

/// A new folder, in memory if there is such a file system. It is removed with
/// its content.
class Folder {
 public:
  Folder() {
    const auto base = std::filesystem::exists("/dev/shm")
                          ? std::filesystem::path("/dev/shm")
                          : std::filesystem::temp_directory_path();
    std::string name = (base / "thinwire_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("no folder can be made in " + base.string());
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string in(const std::string& name) const {
    return path_ + '/' + name;
  }

 private:
  std::string path_;
};

}  // namespace thinwire::test
