package dev.phalanx.spark.internal;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.spark.SparkConf;
import org.apache.spark.util.Utils;

/**
 * What differs between the versions of Spark that one jar runs on. Nothing else of Phalanx does.
 *
 * <p>LINKS-1 (all-there): whatever else the jar refers to of Spark's, every supported version has; `make link-check`
 * compares. Between the two Scalas a jar of its own makes the difference.
 */
final class SparkVersions {
  private SparkVersions() {}

  /** `Utils.getLocalDir`, which takes a `SparkConf` until 4.0 and a `ReadOnlySparkConf` from 4.1 on. */
  static String localDir(SparkConf conf) {
    return (String) ofUtils("getLocalDir", conf);
  }

  /** `Utils.getConfiguredLocalDirs`, for which the same holds. */
  static String[] configuredLocalDirs(SparkConf conf) {
    return (String[]) ofUtils("getConfiguredLocalDirs", conf);
  }

  private static Object ofUtils(String name, SparkConf conf) {
    for (Method method : Utils.class.getMethods()) {
      Class<?>[] takes = method.getParameterTypes();
      if (method.getName().equals(name) && takes.length == 1 && takes[0].isInstance(conf)) {
        try {
          return method.invoke(null, conf);
        } catch (InvocationTargetException problem) {
          throw sneaky(problem.getCause());
        } catch (IllegalAccessException problem) {
          throw new IllegalAccessError(problem.getMessage());
        }
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.util.Utils." + name);
  }

  /** Throws what Spark threw, as a direct call would. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> RuntimeException sneaky(Throwable problem) throws T {
    throw (T) problem;
  }
}
