// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "thinwire/core/log.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::engine {

namespace {

// Writes the text as far as there is room. Returns 0 or errno.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

bool ends_in_a_line(int file, off_t size) {
  char last = '\n';
  return size == 0 || ::pread(file, &last, 1, size - 1) != 1 || last == '\n';
}

}  // namespace

LineFile::LineFile(std::string path, Mode mode) : path_(std::move(path)) {
  (void)open(mode == Mode::kTruncate ? O_TRUNC : 0);
}

bool LineFile::open(int flags) {
  // Opens a pipe without waiting for a reader. Lines without a reader are lost,
  // as on a full disk.
  file_ = ::open(path_.c_str(),
                 O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | flags,
                 0666);
  if (file_ < 0) return failed("opened", errno);
  struct stat status {};
  if (::fstat(file_, &status) == 0 && !ends_in_a_line(file_, status.st_size))
    (void)write_all(file_, "\n");
  return true;
}

LineFile::~LineFile() {
  if (file_ >= 0) ::close(file_);
}

LineFile::LineFile(LineFile&& other) noexcept { *this = std::move(other); }

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(dropped_, other.dropped_);
  std::swap(has_warned_, other.has_warned_);
  return *this;
}

bool LineFile::failed(std::string_view what, int error) {
  if (!std::exchange(has_warned_, true))
    log(LogLevel::kWarning,
        fmt::format("{} cannot be {}: {}; training continues, and lines are "
                    "dropped until it can",
                    path_, what, std::strerror(error)));
  return false;
}

bool LineFile::write(std::string_view line) {
  struct stat status {};
  if ((file_ < 0 && !open(0)) || ::fstat(file_, &status) != 0) {
    ++dropped_;
    return false;
  }
  const int error = write_all(file_, std::string(line) + '\n');
  if (error == 0) return true;
  ++dropped_;
  // Removes a partly written line, to which the next line would be appended.
  if (S_ISREG(status.st_mode) && ::ftruncate(file_, status.st_size) != 0)
    return failed("cut back", errno);
  return failed("written", error);
}

}  // namespace thinwire::engine
