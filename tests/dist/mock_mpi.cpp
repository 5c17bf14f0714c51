// What a program of another MPI has loaded: as much of it as says which one it is.
#include <cstring>

extern "C" {
int MPI_Init(int*, char***) { return 0; }
int MPI_Get_library_version(char* text, int* length) {
  std::strcpy(text, "a mock of another MPI");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}
}
