// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <random>

#include "checkpoint/commit/root.h"
#include "checkpoint/commit/root_directory.h"

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

// Half of it tells the run, half is random.
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

std::string RootDirectory::partial_name(std::int64_t step) const {
  return step_name(step) + std::string(kPartial) + nonce(run);
}

std::string RootDirectory::replaced_name(std::string_view name) const {
  return std::string(name) + std::string(kReplaced) + nonce(run);
}

std::string RootDirectory::deleting_name() const {
  return std::string(kDeleting) + nonce(run);
}

}  // namespace thinwire::checkpoint
