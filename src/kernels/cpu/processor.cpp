// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/processor.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/prefetch.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace thinwire::kernels {

namespace {

#if defined(__x86_64__) || defined(__i386__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Returns zeros if the processor has no such leaf.
Registers cpuid(std::uint32_t leaf) {
  Registers r;
  if (__get_cpuid(leaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

// Returns the characters in `words` without surrounding blanks and zeros.
template <std::size_t kWords>
std::string text_in(const std::array<std::uint32_t, kWords>& words) {
  char padded[4 * kWords + 1] = {};
  std::memcpy(padded, words.data(), 4 * kWords);
  const std::string text = padded;
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

Processor read_processor() {
  const Registers first = cpuid(0);
  const std::uint32_t version = cpuid(1).eax;
  const std::uint32_t base = version >> 8 & 0xf;
  const std::uint32_t extended = base == 0xf ? version >> 20 & 0xff : 0;
  const Registers a = cpuid(0x8000'0002), b = cpuid(0x8000'0003),
                  c = cpuid(0x8000'0004);
  return {.vendor = text_in<3>({first.ebx, first.edx, first.ecx}),
          .family = static_cast<int>(base + extended),
          .name = text_in<12>({a.eax, a.ebx, a.ecx, a.edx, b.eax, b.ebx, b.ecx,
                               b.edx, c.eax, c.ebx, c.ecx, c.edx})};
}

#else

Processor read_processor() { return {}; }

#endif

const Processor& processor() {
  static const Processor result = read_processor();
  return result;
}

// Decides once, unless the decision throws.
const PrefetchChoice& chosen() {
  static const PrefetchChoice choice =
      choose_prefetch(env::prefetch(), processor());
  return choice;
}

enum class Forced { kNo, kOn, kOff };
std::atomic<Forced> forced{Forced::kNo};

}  // namespace

PrefetchChoice choose_prefetch(env::Prefetch asked, const Processor& of) {
  if (asked == env::Prefetch::kOn) return {true, "THINWIRE_PREFETCH=on"};
  if (asked == env::Prefetch::kOff) return {false, "THINWIRE_PREFETCH=off"};
  if (of.vendor.empty()) return {false, "a processor without CPUID"};
  const bool is_intel = of.vendor == "GenuineIntel";
  const std::string vendor = is_intel                      ? "Intel"
                             : of.vendor == "AuthenticAMD" ? "AMD"
                             : of.vendor == "HygonGenuine" ? "Hygon"
                                                           : of.vendor;
  return {is_intel, vendor + " family " + std::to_string(of.family)};
}

void force_prefetch(std::optional<bool> on) noexcept {
  // Relaxed order suffices, because nothing else is published and both settings
  // give the same bits.
  forced.store(!on   ? Forced::kNo
               : *on ? Forced::kOn
                     : Forced::kOff,
               std::memory_order_relaxed);
}

std::string processor_name() {
  return processor().name.empty() ? "unknown" : processor().name;
}

bool prefetches() {
  const Forced setting = forced.load(std::memory_order_relaxed);
  return setting == Forced::kNo ? chosen().on : setting == Forced::kOn;
}

std::string prefetch_reason() { return chosen().why; }

}  // namespace thinwire::kernels
