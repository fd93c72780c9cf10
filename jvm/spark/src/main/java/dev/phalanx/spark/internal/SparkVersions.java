package dev.phalanx.spark.internal;

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.SparkConf;
import org.apache.spark.api.python.PythonBroadcast;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils$;
import org.apache.spark.ui.WebUIPage;
import org.apache.spark.util.Utils;
import scala.Function0;
import scala.Option;
import scala.xml.NodeSeq;

/**
 * What differs between the versions of Spark that one jar runs on. Nothing else of Phalanx does.
 *
 * <p>JAR-5 (all-there): whatever else the jar refers to of Spark's, every supported version has; `make link-check`
 * compares. Between the two Scalas a jar of its own makes the difference.
 */
public final class SparkVersions {
  private SparkVersions() {}

  /** `Utils.getLocalDir`, which takes a `SparkConf` until 4.0 and a `ReadOnlySparkConf` from 4.1 on. */
  static String localDir(SparkConf conf) {
    return (String) ofUtils("getLocalDir", conf);
  }

  /** `Utils.getConfiguredLocalDirs`, for which the same holds. */
  static String[] configuredLocalDirs(SparkConf conf) {
    return (String[]) ofUtils("getConfiguredLocalDirs", conf);
  }

  /** The class of the requests that pages of Spark's UI take: `javax` until 3.5, `jakarta` from 4.0 on. */
  public static String servletsOfPages() {
    for (Method method : WebUIPage.class.getMethods()) {
      if (method.getName().equals("render") && method.getParameterCount() == 1) {
        return method.getParameterTypes()[0].getName();
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.ui.WebUIPage.render");
  }

  /** `UIUtils.headerSparkPage`, a page in Spark's style: its request differs, and how many options it has. */
  public static NodeSeq sparkPage(Object request, String title, NodeSeq content, SparkUITab tab) {
    Function0<NodeSeq> contents = () -> content;
    for (Method method : UIUtils$.class.getMethods()) {
      Class<?>[] takes = method.getParameterTypes();
      if (method.getName().equals("headerSparkPage") && takes.length >= 4 && takes[0].isInstance(request)) {
        Object[] arguments = new Object[takes.length];
        System.arraycopy(new Object[] {request, title, contents, tab}, 0, arguments, 0, 4);
        for (int i = 4; i < takes.length; i++) {
          arguments[i] = takes[i] == boolean.class ? (Object) false : Option.empty();
        }
        return (NodeSeq) invoked(method, UIUtils$.MODULE$, arguments); // whose text is that of the page
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.ui.UIUtils.headerSparkPage");
  }

  /** `WebUI.attachHandler` of a servlet, whose class is of `javax` until 3.5, and of `jakarta` from 4.0 on. */
  public static void attachServlet(SparkUI ui, String path, Object servlet) {
    for (Method method : SparkUI.class.getMethods()) {
      Class<?>[] takes = method.getParameterTypes();
      if (method.getName().equals("attachHandler") && takes.length == 3 && takes[1].isInstance(servlet)) {
        invoked(method, ui, path, servlet, "/*");
        return;
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.ui.WebUI.attachHandler of a servlet");
  }

  /**
   * `ArrowUtils.toArrowSchema` as `mapInArrow` calls it: until 4.1 it has a parameter more, whether equal names in a
   * struct are an error.
   */
  public static Schema arrowSchema(StructType schema, String timeZone, boolean large) {
    Schema found = arrowSchema(3, schema, timeZone, large);
    found = found == null ? arrowSchema(4, schema, timeZone, true, large) : found;
    if (found == null) {
      throw new NoSuchMethodError("this Spark has no org.apache.spark.sql.util.ArrowUtils.toArrowSchema");
    }
    return found;
  }

  private static Schema arrowSchema(int count, Object... arguments) {
    for (Method method : ArrowUtils.class.getMethods()) {
      if (method.getName().equals("toArrowSchema") && method.getParameterCount() == count) {
        return (Schema) invoked(method, null, arguments);
      }
    }
    return null;
  }

  /** `SimplePythonFunction` without code or accumulator, whose class is another one in Spark 3.5 than later. */
  static PythonFunction pythonCode(
      Map<String, String> variables, String python, List<Broadcast<PythonBroadcast>> broadcasts) {
    Object[] arguments = {new byte[0], variables, List.of(), python, "", broadcasts, null};
    for (Constructor<?> constructor : SimplePythonFunction.class.getConstructors()) {
      if (constructor.getParameterTypes()[0] == byte[].class) {
        return (PythonFunction) made(constructor, arguments);
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.api.python.SimplePythonFunction of bytes");
  }

  /** `UserDefinedPythonFunction`, which has lists of more from 4.3 on; one that is not deterministic. */
  static UserDefinedPythonFunction pythonFunction(String name, PythonFunction code, DataType type, int evalType) {
    Constructor<?> constructor = UserDefinedPythonFunction.class.getConstructors()[0];
    Object[] arguments = new Object[constructor.getParameterCount()];
    Arrays.fill(arguments, List.of());
    System.arraycopy(new Object[] {name, code, type, evalType, false}, 0, arguments, 0, 5);
    return (UserDefinedPythonFunction) made(constructor, arguments);
  }

  /** `org.apache.spark.ml.functions.vector_to_array` of a column; a Spark of one's own may come without its MLlib. */
  public static Object vectorToArray(Object column) {
    try {
      Class<?> functions = Class.forName("org.apache.spark.ml.functions");
      return invoked(functions.getMethod("vector_to_array", column.getClass(), String.class), null, column, "float64");
    } catch (ReflectiveOperationException problem) {
      throw new NoSuchMethodError("this Spark has no org.apache.spark.ml.functions.vector_to_array");
    }
  }

  private static Object made(Constructor<?> constructor, Object... arguments) {
    try {
      return constructor.newInstance(arguments);
    } catch (InvocationTargetException problem) {
      throw sneaky(problem.getCause());
    } catch (IllegalAccessException | InstantiationException problem) {
      throw new IllegalAccessError(problem.getMessage());
    }
  }

  private static Object ofUtils(String name, SparkConf conf) {
    for (Method method : Utils.class.getMethods()) {
      Class<?>[] takes = method.getParameterTypes();
      if (method.getName().equals(name) && takes.length == 1 && takes[0].isInstance(conf)) {
        return invoked(method, null, conf);
      }
    }
    throw new NoSuchMethodError("this Spark has no org.apache.spark.util.Utils." + name);
  }

  private static Object invoked(Method method, Object of, Object... arguments) {
    try {
      return method.invoke(of, arguments);
    } catch (InvocationTargetException problem) {
      throw sneaky(problem.getCause());
    } catch (IllegalAccessException problem) {
      throw new IllegalAccessError(problem.getMessage());
    }
  }

  /** Throws what Spark threw, as a direct call would. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> RuntimeException sneaky(Throwable problem) throws T {
    throw (T) problem;
  }
}
