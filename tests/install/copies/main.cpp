// Three copies of the static library in one program: its own and two plug-ins'. Each has its own settings, threads and errors.
#include <cstdio>

extern "C" int run_0(int threads);
extern "C" int run_1(int threads);
extern "C" int run_2(int threads);

int main() {
  int (*const copies[])(int) = {run_0, run_1, run_2};
  for (int i = 0; i < 3; ++i)
    if (copies[i](2 + i) <= 0) return std::printf("copy %d does not work\n", i), 1;
  for (int i = 0; i < 3; ++i)
    if (const int set = copies[i](1); set != 2 + i) return std::printf("copy %d: %d threads; expected its own %d\n", i, set, 2 + i), 1;
  return 0;
}
