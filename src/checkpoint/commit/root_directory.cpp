// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root_directory.h"

#include <fmt/format.h>

#include <exception>
#include <random>
#include <span>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kPartial = ".partial-";
constexpr std::string_view kReplaced = ".replaced-";
constexpr std::string_view kDeleting = ".deleting-";
constexpr std::size_t kNonceDigits = 16;
constexpr std::size_t kRunDigits = 8;

std::string random_digits(std::size_t count) {
  std::random_device device;
  std::string digits;
  while (digits.size() < count)
    digits += fmt::format("{:08x}", static_cast<std::uint32_t>(device()));
  return digits.substr(0, count);
}

// Returns 16 digits: eight from the run's id, and eight random ones.
std::string nonce(std::string_view run) {
  return std::string(run.substr(0, kRunDigits)) +
         random_digits(kNonceDigits - kRunDigits);
}

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Returns the position of `marker` and its digits at the end of `name`, or
// npos.
std::size_t find_suffix(std::string_view name, std::string_view marker) {
  const std::size_t length = marker.size() + kNonceDigits;
  if (name.size() < length) return name.npos;
  const std::size_t begin = name.size() - length;
  const bool fits = name.substr(begin, marker.size()) == marker &&
                    is_hexadecimal(name.substr(begin + marker.size()));
  return fits ? begin : name.npos;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Removes the manifest first, so that an interruption leaves no checkpoint.
void remove_tree(FileSystem& files, const std::string& path) {
  const std::string manifest = fmt::format("{}/{}", path, kManifestName);
  if (files.exists(manifest)) files.remove_file(manifest);
  for (const std::string& name : files.list(path)) {
    const std::string inner = fmt::format("{}/{}", path, name);
    if (files.stat(inner).kind == FileInfo::Kind::kDirectory) {
      remove_tree(files, inner);
    } else {
      files.remove_file(inner);
    }
  }
  files.remove_directory(path);
}

}  // namespace

std::string random_id() { return random_digits(32); }

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:010}", kStep, step);
}

NameKind kind_of(std::string_view name) {
  if (find_suffix(name, kDeleting) == 0) return NameKind::kDeleting;
  if (!name.starts_with(kStep)) return NameKind::kForeign;
  if (find_suffix(name, kPartial) != name.npos) return NameKind::kPartial;
  if (find_suffix(name, kReplaced) != name.npos) return NameKind::kReplaced;
  const std::string_view digits = name.substr(kStep.size());
  const bool is_number = digits.size() >= 10 &&
                         digits.find_first_not_of("0123456789") == name.npos;
  return is_number ? NameKind::kFinal : NameKind::kForeign;
}

bool is_of_run(std::string_view name, std::string_view run) {
  return name.size() >= kNonceDigits &&
         name.substr(name.size() - kNonceDigits, kRunDigits) ==
             run.substr(0, kRunDigits);
}

std::string RootDirectory::in(std::string_view name) const {
  return fmt::format("{}/{}", path, name);
}

std::string RootDirectory::partial_name(std::int64_t step) const {
  return step_name(step) + std::string(kPartial) + nonce(run);
}

std::string RootDirectory::replaced_name(std::string_view name) const {
  return std::string(name) + std::string(kReplaced) + nonce(run);
}

std::string RootDirectory::deleting_name() const {
  return std::string(kDeleting) + nonce(run);
}

void RootDirectory::make() const {
  std::vector<std::string> grown;  // directories that get a new entry
  for (std::string at = path; !files.exists(at); at = grown.back())
    grown.push_back(parent_of(at));
  files.make_directories(path);
  for (const std::string& directory : grown) sync(directory);
}

void RootDirectory::sync(const std::string& directory) const {
  if (durable) files.sync_directory(directory);
}

void RootDirectory::put_file(const std::string& directory,
                             std::string_view name,
                             std::string_view text) const {
  const std::string to = fmt::format("{}/{}", directory, name);
  const std::string temporary = to + ".tmp";
  if (files.exists(temporary)) files.remove_file(temporary);  // left by a crash
  const auto file = files.create(temporary);
  file->write_at(0, std::as_bytes(std::span(text)));
  if (durable) file->sync();
  file->close();
  files.rename(temporary, to);
}

void RootDirectory::put_latest(std::string_view name) const {
  put_file(path, "latest", fmt::format("{}\n", name));
}

void RootDirectory::remove(const std::string& name) const {
  // Links are kept, because a user made them to store the checkpoint elsewhere.
  if (files.stat(in(name)).kind == FileInfo::Kind::kLink) return;
  std::string out_of_sight = name;
  if (kind_of(name) != NameKind::kDeleting) {
    out_of_sight = deleting_name();
    files.rename(in(name), in(out_of_sight));
    sync(path);
  }
  remove_tree(files, in(out_of_sight));
}

void RootDirectory::try_to_remove(const std::string& name) const noexcept {
  try {
    remove(name);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning,
        std::string("the rest of a checkpoint cannot be removed: ") +
            error.what());
  }
}

}  // namespace thinwire::checkpoint
