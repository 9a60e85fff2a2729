// SPDX-License-Identifier: Apache-2.0
// Two functions of which the C and C++ libraries have two versions that compute
// the same. A linker takes the newest; the wheel takes the oldest, so that it
// also loads where glibc 2.34 and GCC 11 are the newest. CMakeLists.txt wraps
// them.
extern "C" {

double thinwire_hypot(double x, double y);
__asm__(".symver thinwire_hypot,hypot@GLIBC_2.2.5");
double __wrap_hypot(double x, double y) { return thinwire_hypot(x, y); }

// std::condition_variable::wait(std::unique_lock<std::mutex>&)
void thinwire_wait(void* condition, void* lock);
__asm__(
    ".symver thinwire_wait,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    void* condition, void* lock) {
  thinwire_wait(condition, lock);
}
}
